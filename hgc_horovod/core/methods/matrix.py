"""Methods that take a tensor for a matrix: its dimensions in two groups, as square as that can be."""

from __future__ import annotations

from typing import Any

from ..feedback import Feedback
from ..matrices import Factors, LowRank, SpectralAtoms
from ..method import Method
from ..quantize import Float32
from .sparse import some


def powersgd(rank: int = 4, *, momentum: float = 0.0, nesterov: bool = False, **dense: Any) -> Method:
    """PowerSGD: M ≈ P·Qᵀ of a low rank, both averaged over the ranks by allreduce. Biased, with feedback.

    P = M·Q with the last step's Q (at first random numbers that all ranks share), averaged and
    orthogonalized; Q = Mᵀ·P, averaged. M is the tensor's gradient and residual.

    Sends 32·rank·(rows + columns) bits a tensor, in two rounds.

    Source: Vogels, Karimireddy & Jaggi, PowerSGD, NeurIPS 2019 (1905.13727).
    """
    feedback = Feedback(momentum=momentum, nesterov=nesterov)
    return some("powersgd", LowRank(rank), Float32(), feedback, dense)


def atomo(atoms: int = 3, **dense: Any) -> Method:
    """Spectral ATOMO: singular vectors of the gradient, each with a probability, and divided by it. Unbiased,
    nothing is kept.

    p_i = s·|λ_i| / ‖λ‖₁ with s = `atoms`, what exceeds 1 being certain and redistributed. The singular value
    decomposition takes its time: seconds for a matrix of some thousand rows and columns.

    Sends 32·(rows + columns) bits for each atom, `atoms` of them as an expectation.

    Source: Wang et al., ATOMO, NeurIPS 2018 (1806.04090).
    """
    return some("atomo", SpectralAtoms(atoms), Factors(), Feedback(keep=False), dense)
