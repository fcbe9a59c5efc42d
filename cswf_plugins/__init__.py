"""The built-in plugins. They come through the entry-point door like anyone's."""

from __future__ import annotations

from cswf_core.hookspecs import Register, hookimpl
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.cdfs.spline import Spline
from cswf_plugins.conditions.colorize import Colorize
from cswf_plugins.conditions.continuous import Continuous
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.conditions.super_resolution import SuperResolution
from cswf_plugins.coordinates.plain import Plain
from cswf_plugins.coordinates.principal import Principal
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.datasets.celeba import CelebA
from cswf_plugins.datasets.cifar10 import Cifar10
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.datasets.fashion_mnist import FashionMnist
from cswf_plugins.datasets.image_folder import ImageFolder
from cswf_plugins.datasets.mnist import Mnist
from cswf_plugins.datasets.npz import Npz
from cswf_plugins.datasets.packed import Packed
from cswf_plugins.datasets.synthetic import Synthetic
from cswf_plugins.datasets.toy_2d import Toy2D
from cswf_plugins.metrics.class_accuracy import ClassAccuracy
from cswf_plugins.metrics.class_fid import ClassFid
from cswf_plugins.metrics.completion_fid import CompletionFid
from cswf_plugins.metrics.density_coverage import DensityCoverage
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.fid_infinity import FidInfinity
from cswf_plugins.metrics.kid import Kid
from cswf_plugins.metrics.nearest_neighbours import NearestNeighbours
from cswf_plugins.metrics.perceptual_distance import PerceptualDistance
from cswf_plugins.metrics.precision_recall import PrecisionRecall
from cswf_plugins.metrics.psnr import Psnr
from cswf_plugins.metrics.sliced_wasserstein import SlicedWasserstein
from cswf_plugins.observers.tensorboard import TensorBoard
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.data_covariance import DataCovariance
from cswf_plugins.projections.exemplars import Exemplars
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.low_rank import LowRank
from cswf_plugins.projections.max_sliced import MaxSliced
from cswf_plugins.projections.orthogonal import Orthogonal
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.adaptive import Adaptive
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Pyramid


@hookimpl
def register_projections(register: Register) -> None:
    """Offer the built-in projections."""
    register("uniform", Uniform)
    register("locally-connected", LocallyConnected)
    register("conv-stack", ConvStack)
    register("high-pass", HighPass)
    register("low-rank", LowRank)
    register("exemplars", Exemplars)
    register("orthogonal", Orthogonal)
    register("data-covariance", DataCovariance)
    register("max-sliced", MaxSliced)


@hookimpl
def register_cdfs(register: Register) -> None:
    """Offer the built-in CDF estimators."""
    register("histogram", Histogram)
    register("sorted", Sorted)
    register("spline", Spline)


@hookimpl
def register_conditions(register: Register) -> None:
    """Offer the built-in conditions."""
    register("none", NoCondition)
    register("one-hot", OneHot)
    register("continuous", Continuous)
    register("separate", Separate)
    register("mask", Mask)
    register("super-resolution", SuperResolution)
    register("colorize", Colorize)


@hookimpl
def register_schedules(register: Register) -> None:
    """Offer the built-in schedules."""
    register("constant", Constant)
    register("pyramid", Pyramid)
    register("adaptive", Adaptive)


@hookimpl
def register_coordinates(register: Register) -> None:
    """Offer the built-in coordinates."""
    register("plain", Plain)
    register("whitened", Whitened)
    register("principal", Principal)


@hookimpl
def register_datasets(register: Register) -> None:
    """Offer the built-in data sets."""
    register("digits", Digits)
    register("toy-2d", Toy2D)
    register("npz", Npz)
    register("mnist", Mnist)
    register("fashion-mnist", FashionMnist)
    register("cifar10", Cifar10)
    register("celeba", CelebA)
    register("image-folder", ImageFolder)
    register("packed", Packed)
    register("synthetic", Synthetic)


@hookimpl
def register_metrics(register: Register) -> None:
    """Offer the built-in metrics."""
    register("fid", Fid)
    register("fid-infinity", FidInfinity)
    register("kid", Kid)
    register("precision-recall", PrecisionRecall)
    register("density-coverage", DensityCoverage)
    register("nearest-neighbours", NearestNeighbours)
    register("class-fid", ClassFid)
    register("class-accuracy", ClassAccuracy)
    register("psnr", Psnr)
    register("perceptual-distance", PerceptualDistance)
    register("completion-fid", CompletionFid)
    register("sliced-wasserstein", SlicedWasserstein)


@hookimpl
def register_observers(register: Register) -> None:
    """Offer the built-in observers."""
    register("tensorboard", TensorBoard)
