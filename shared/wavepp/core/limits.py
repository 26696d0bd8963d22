"""Bounds that hold everywhere. What a deployment may tune is configuration; what is here is protocol."""

from __future__ import annotations

from typing import Final

REQUEST_ID_BYTES_MAX: Final = 128
SALT_BYTES_MAX: Final = 256
NAME_BYTES_MAX: Final = 128
"""Model and adapter names, cluster and pipeline names."""

PROMPT_TOKENS_MAX: Final = 4 * 1024 * 1024
"""Above the longest context of any model that is served today; a model's own limit is lower."""

TEXT_BYTES_MAX: Final = 32 * 1024 * 1024

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""gRPC message limit: 4 M token ids of five varint bytes, with room to spare."""

STAGES_MAX: Final = 64
TOP_LOGPROBS_MAX: Final = 20

KEY_BYTES: Final = 16
TOKEN_BYTES: Final = 4

ROUND_ATTEMPTS_MAX: Final = 64
"""Attempts in one admission round."""

ROUND_KEYS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Packed keys in one admission round, unless it has only one attempt: half of a message."""

WAVE_REQUESTS_MAX: Final = 512
"""Chunks in one wave, whatever the configuration says."""

CHUNK_KEYS_MAX: Final = 1024
"""Keys that may come with one chunk (blocks that decoding fills)."""

SNAPSHOT_OFFERS_MAX: Final = 64
CACHE_CHANGES_MAX: Final = 4096
"""Changes in one message from a stage, and keys in one segment of a dump."""

FRAME_HEADER_BYTES_MAX: Final = 1024 * 1024
FRAME_PAYLOAD_BYTES_MAX: Final = 1024 * 1024 * 1024
FRAMES_UNREAD_MAX: Final = 2
"""Frames that a sender may have outstanding on one link."""

FRAME_TENSORS_MAX: Final = 16
TENSOR_RANK_MAX: Final = 6
