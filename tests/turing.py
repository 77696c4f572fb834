"""Hypothesis strategies for Turing machines and their inputs."""

from hypothesis import strategies as st

from looped_actor.theory import Machine, Transition


@st.composite
def machines(draw, max_state_bits=5, max_transitions=12):
    s = draw(st.integers(0, max_state_bits))
    state, symbol = st.integers(0, (1 << s) - 1), st.integers(0, 3)
    transition = st.builds(Transition, state, symbol, state, symbol, st.booleans())
    return Machine(s, tuple(draw(st.lists(transition, max_size=max_transitions))))


words = st.text("01", max_size=40)
