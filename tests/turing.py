"""Turing machines and their inputs, for hypothesis."""

from hypothesis import strategies as st

from looped_actor.theory import Entry, Machine


@st.composite
def machines(draw, most_bits=5, most_entries=12):
    s = draw(st.integers(0, most_bits))
    state, symbol = st.integers(0, (1 << s) - 1), st.integers(0, 3)
    entry = st.builds(Entry, state, symbol, state, symbol, st.booleans())
    return Machine(s, tuple(draw(st.lists(entry, max_size=most_entries))))


words = st.text("01", max_size=40)
