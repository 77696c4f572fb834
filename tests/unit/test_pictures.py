"""Pictures of boards of both games."""

import numpy as np
import pytest

from boards import random_boxoban, random_rush_hour
from looped_actor.puzzles.drawing import to_pixels, to_svg
from looped_actor.puzzles.pictures import draw, draw_sheet, save, save_episode, terminal_text


@pytest.mark.parametrize("make", [random_boxoban, random_rush_hour])
def test_pictures_of_any_board(make, tmp_path):
    rng = np.random.default_rng(0)
    boards = [make(rng, shape=(4, 6)) for _ in range(5)]
    drawing = draw(boards[0])
    assert (drawing.width, drawing.height) == pytest.approx((6.7, 4.7))
    assert to_pixels(drawing, 10).shape == (47, 67, 3)
    assert to_svg(drawing).count("<") == len(drawing.shapes) + 2
    sheet = draw_sheet(boards)
    assert (sheet.width, sheet.height) == pytest.approx((3 * 6.7, 2 * 4.7))
    save(boards, tmp_path / "a" / "sheet.png")
    save(boards[:1], tmp_path / "board.svg")
    save_episode(boards, tmp_path / "episode.gif", cell=8)
    assert len(list(tmp_path.rglob("*.*"))) == 3
    assert len(terminal_text(boards[0]).plain.split("\n")) == 4


@pytest.mark.parametrize(("function", "name"), [(save, "a.txt"), (save_episode, "a.png")])
def test_files_of_other_types_are_refused(function, name, tmp_path):
    board = random_boxoban(np.random.default_rng(0))
    with pytest.raises(ValueError, match="written as"):
        function([board], tmp_path / name)
