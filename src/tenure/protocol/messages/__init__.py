"""What travels: requests and replies as structs, the same in JSON and in MessagePack.

Times are whole milliseconds and say so (`_ms`); ids and leases are hex; payloads and results are bytes, which JSON
writes as base64. What `model` already has a struct for (Job, Counts, EventPage, …) travels as that struct.
A request with a field that is not listed here is refused; a reply may grow fields, which older clients pass over.
"""

from tenure.protocol.messages.administration import (
    CheckBody as CheckBody,
    ChildList as ChildList,
    ChildrenQuery as ChildrenQuery,
    CleanupBody as CleanupBody,
    DeleteQuery as DeleteQuery,
    DrawBody as DrawBody,
    EventList as EventList,
    EventsQuery as EventsQuery,
    KeyHolder as KeyHolder,
    KeyQuery as KeyQuery,
    ListAllQuery as ListAllQuery,
    GroupsQuery as GroupsQuery,
    ListQuery as ListQuery,
    NewestQuery as NewestQuery,
    ParentList as ParentList,
    ParentsQuery as ParentsQuery,
    PurgeBody as PurgeBody,
    QueueBody as QueueBody,
    QueueList as QueueList,
    QuotaList as QuotaList,
    ReplayBody as ReplayBody,
    SnapshotBody as SnapshotBody,
    StoreInfo as StoreInfo,
    UpcomingQuery as UpcomingQuery,
    WaitQuery as WaitQuery,
)
from tenure.protocol.messages.base import (
    Count as Count,
    Done as Done,
    Nothing as Nothing,
    Problem as Problem,
    Request as Request,
    checked_text as checked_text,
)
from tenure.protocol.messages.bulk import (
    ChunkBody as ChunkBody,
    DiscardBody as DiscardBody,
    FinishBody as FinishBody,
    ImageBody as ImageBody,
    JobIdList as JobIdList,
    LoadBody as LoadBody,
    PageQuery as PageQuery,
    PartList as PartList,
    PartsQuery as PartsQuery,
    PieceBody as PieceBody,
    RestoreBody as RestoreBody,
    SliceQuery as SliceQuery,
    SnapshotList as SnapshotList,
    Stream as Stream,
    TableQuery as TableQuery,
    TakeBody as TakeBody,
    WriteBody as WriteBody,
)
from tenure.protocol.messages.jobs import (
    ClaimAnyBody as ClaimAnyBody,
    ClaimBody as ClaimBody,
    ClaimReply as ClaimReply,
    ClaimSeveralBody as ClaimSeveralBody,
    Columns as Columns,
    DeliveryBody as DeliveryBody,
    ExtendBody as ExtendBody,
    JobBody as JobBody,
    Jobs as Jobs,
    ProgressBody as ProgressBody,
    SettleAlike as SettleAlike,
    SettleBody as SettleBody,
    SettleItem as SettleItem,
    SettleReply as SettleReply,
    job_bodies as job_bodies,
    job_requests as job_requests,
)
