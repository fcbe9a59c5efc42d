"""Frames show the same few particles from the start of a flow to its end."""

from __future__ import annotations

import io

import attrs
import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from cswf_core.flow.flow import Flow
from cswf_core.interfaces import Conditions, Dataset, Key, Space
from cswf_core.pictures import frames as module
from cswf_core.pictures.frames import FrameRecorder, Frames, spread
from cswf_core.pictures.grid import arrangement, mosaic
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow


def image_data(n: int = 60, classes: int = 3, labelled: bool = True) -> Dataset:
    x = Key(1, "test images").open(dtype=torch.float64).normal(16, n) * 0.3
    labels = torch.arange(n) % classes
    names = tuple(f"class {c}" for c in range(classes)) if labelled else ()
    return Dataset(x, Space((1, 4, 4)), Conditions(labels=labels if labelled else None), names)


def run(recorder: FrameRecorder, data: Dataset, steps: int = 30, **options: object) -> Dataset:
    schedule = options.pop("schedule", None) or Constant(steps=steps, directions=20)
    return small_flow(data, observers=(recorder,), schedule=schedule, **options).run()


@pytest.mark.parametrize(("total", "count"), [(0, 24), (1, 24), (23, 24), (100, 24), (47_020, 24), (9, 2)])
def test_steps_rise_from_the_first_to_the_last_and_thin_out(total, count):
    steps = spread(total, count)
    assert steps[0] == 0
    assert steps[-1] == total
    assert steps == sorted(set(steps))
    assert len(steps) == min(count, total + 1)
    gaps = np.diff(steps)
    assert not len(gaps) or gaps[0] <= gaps[-1]


def test_the_start_and_the_end_are_the_particles_themselves_and_a_checkpoint_has_what_was_recorded():
    recorder = FrameRecorder(6)
    data = image_data()
    generated = run(recorder, data, count=60)
    frames = Frames.read(io.BytesIO(recorder.frames.archive()))
    assert frames.steps == tuple(spread(30, 6))
    assert frames.images.shape == (6, 15, 1, 4, 4)
    assert frames.images.dtype == np.uint8
    assert frames.classes == data.classes
    labels = generated.conditions.labels
    chosen = torch.cat([(labels == c).nonzero()[:5, 0] for c in range(3)])
    assert (frames.labels == labels[chosen].numpy()).all()
    assert (frames.images[-1] == generated.take(chosen).images().numpy()).all()
    assert (frames.images[0] != frames.images[-1]).any()
    again = FrameRecorder(6)
    again.recall(recorder.keep(), 30)
    assert all(torch.equal(a, b) for a, b in zip(recorder.keep().values(), again.keep().values(), strict=True))
    again.recall({}, 0)
    assert again.keep() == {}


def test_a_flow_that_ends_early_still_has_its_end():
    @attrs.frozen
    class Impatient(Constant):
        adaptive = True

        def stop(self, stage, distances):
            return len(distances) == 7

    recorder = FrameRecorder(4)
    generated = run(recorder, image_data(labelled=False), schedule=Impatient(steps=30, directions=20))
    assert recorder.frames.steps[-1] == 7
    assert (recorder.frames.images[-1] == generated.images().numpy()).all()


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("labelled", [True, False])
def test_snapshots_are_recorded_besides_and_steps_never_reached_left_out(labelled, count):
    recorder = FrameRecorder(count, snapshots=(2, 5, 29, 100))
    run(recorder, image_data(labelled=labelled))
    frames = recorder.frames
    snapshots = frames.at(recorder.snapshots)
    assert set(spread(30, count)) | {2, 5, 29} == set(frames.steps)
    assert snapshots.steps == (2, 5, 29)
    rows = 3 if labelled else module.ROWS  # the first of each class, or the first of all
    assert snapshots.strip().size == (3 * 42 + 2, rows * 42 + 2 + 16)
    assert np.asarray(snapshots.tiles()[0][2])[0, 0, 0] == frames.images[frames.steps.index(29)][0, 0, 0, 0]
    assert frames.at((1,)) is None


def test_only_the_particles_that_are_shown_leave_the_device_and_only_at_chosen_steps(monkeypatch):
    fetched = []
    whole = Flow.samples

    def samples(flow, index=None):
        fetched.append(len(flow.particles) if index is None else len(index))
        return whole(flow, index)

    monkeypatch.setattr(Flow, "samples", samples)
    run(FrameRecorder(5), image_data(60, labelled=False), steps=8, count=60)
    assert fetched == [48] * 5 + [60]  # the last one is what run() returns


def test_points_are_recorded_in_the_plane_with_some_of_their_target_and_those_that_arrive_from_then_on():
    recorder = FrameRecorder(10)
    options = {"schedule": Constant(steps=4, directions=20), "cdf": Histogram(bins=16), "sets": 2}
    flow = small_flow(random_data(d=5, n=40), observers=(recorder,), **options)
    flow.again(4, arriving=random_data(seed=5))
    flow.run()
    frames = Frames.read(io.BytesIO(recorder.frames.archive()))
    assert frames.points.shape == (9, 60, 2)
    assert frames.points.dtype == np.float32
    assert frames.target.shape[1] == 2
    assert (frames.since == np.repeat([0, 5], 30)).all()
    assert len(frames.pictures()) == 9
    with Image.open(io.BytesIO(frames.gif())) as animation:
        assert animation.n_frames == 9


def test_large_images_are_fewer_and_none_are_recorded_if_none_are_wanted(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 16 * 7)
    recorder = FrameRecorder(2)
    run(recorder, image_data(), steps=2)
    assert recorder.frames.images.shape[1] == 6  # two of each class
    unused = FrameRecorder(0)
    run(unused, image_data(), steps=2)
    assert unused.frames is None


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_animation_has_all_frames_and_holds_its_last(labelled, channels):
    images = np.random.default_rng(0).integers(0, 256, (4, 12, channels, 5, 6), dtype=np.uint8)
    labels = np.repeat(np.arange(3), 4) if labelled else None
    with Image.open(io.BytesIO(Frames((0, 1, 5, 20), images=images, labels=labels).gif())) as animation:
        durations = [frame.info["duration"] for frame in ImageSequence.Iterator(animation)]
        assert len(durations) == 4
        assert durations[-1] > 5 * durations[0]
        assert max(animation.size) >= 300


def test_few_takes_as_many_of_each_class():
    images = np.zeros((2, 15, 1, 2, 2), dtype=np.uint8)
    frames = Frames((0, 1), images=images, labels=np.repeat(np.arange(3), 5))
    assert frames.fewer(7).labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert frames.fewer(2).labels.tolist() == [0, 1]
    assert frames.fewer(100) is frames


def test_classes_are_columns_if_there_are_more_of_them_than_images_of_each():
    many, few = np.repeat(np.arange(4), 2), np.repeat(np.arange(2), 3)
    assert arrangement(many, 8).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert arrangement(few, 6).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrangement(np.array([0, 0, 1]), 3).tolist() == [[0, 1], [2, -1]]
    assert arrangement(None, 48).shape == (6, 8)
    assert sorted(arrangement(None, 7).ravel().tolist())[-7:] == list(range(7))
    assert arrangement(None, 1).tolist() == [[0]]


def test_a_mosaic_shows_each_image_in_its_place_with_clear_gaps():
    images = np.full((3, 1, 2, 2), 10, dtype=np.uint8) * np.arange(1, 4, dtype=np.uint8)[:, None, None, None]
    drawn = np.asarray(mosaic(images, np.array([[0, 1], [2, -1]])))
    assert drawn.shape == (5, 5, 2)
    assert (drawn[:2, 3:, 0] == 20).all()
    assert (drawn[3:, :2, 0] == 30).all()
    assert (drawn[2, :, 1] == 0).all()
    assert (drawn[3:, 3:, 1] == 0).all()


@pytest.mark.parametrize("labelled", [True, False])
def test_particles_that_arrive_are_shown_from_then_on(labelled):
    data, new = image_data(labelled=labelled), image_data(classes=5, labelled=labelled)
    condition = OneHot(room=5) if labelled else None
    recorder = FrameRecorder(10)
    options = {"schedule": Constant(steps=4, directions=20), "cdf": Histogram(bins=16), "sets": 2, "count": 60}
    flow = small_flow(data, observers=(recorder,), condition=condition, **options)
    flow.again(4, arriving=new)
    end = flow.run()
    frames = Frames.read(io.BytesIO(recorder.frames.archive()))
    assert frames.steps == tuple(range(9))
    founders = 15 if labelled else 24
    assert (frames.since[:founders] == 0).all()
    assert (frames.since[founders:] == 5).all()  # step 5 is the first after the arrival
    assert len(frames.since) == frames.images.shape[1] > founders
    pictures = [np.asarray(picture) for picture in frames.pictures()]
    shown = [(picture[..., -1] > 0).sum() // 16 for picture in pictures]
    assert shown == [founders] * 5 + [len(frames.since)] * 4
    later = frames.at((4, 5)).tiles()[3:]
    blank = [[picture.getpixel((0, 0)) == (255, 255, 255) for picture in row] for row in later]
    assert blank == ([[True, False]] * 2 if labelled else [[False, False]] * 7)
    few = frames.fewer(10)
    assert few.since.shape == few.images.shape[1:2]
    if labelled:
        assert set(frames.labels) == {0, 1, 2, 3, 4}
        assert frames.classes == end.classes
    assert recorder.frames.gif()
