"""Checkpoint folders from the Hugging Face hub: what is on disk, and the download.

Every way a download can fail becomes one line that says what to do.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from fishcli.errors import RunError, UsageError

# The files of a checkpoint folder; anything else in a repository stays there.
WANTED = ("*.json", "*.safetensors", "codec.pth", "*.txt", "*.jinja", "LICENSE*")


def cached_folder(repository: str) -> Path | None:
    """The newest snapshot of ``repository`` in the local cache, whole or not; no network."""
    try:
        config = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def download(repository: str) -> Path:
    """Fetch what is missing of ``repository`` and return its snapshot's folder.

    Raises :class:`UsageError` for a repository that cannot be had under this name or
    account, :class:`RunError` where the network or the disk failed.
    """
    try:
        return Path(snapshot_download(repository, allow_patterns=list(WANTED)))
    except GatedRepoError:
        raise UsageError(
            f"{repository} is gated: accept its licence at https://huggingface.co/{repository} "
            "and log in with `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise UsageError(
            f"{repository} is not on the hub, or private: check the spelling, or log in with "
            "`hf auth login`; a local folder works too"
        ) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise RunError(
            f"{repository} is not on disk and the hub cannot be reached: download it elsewhere "
            f"with `hf download {repository} --local-dir FOLDER` and pass the folder as the model"
        ) from None
    except Exception as error:  # disk, or the HTTP library, whose errors differ by hub release
        first_line = str(error).split("\n", 1)[0]
        raise RunError(f"{repository} could not be downloaded: {first_line}") from error
