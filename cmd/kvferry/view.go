package main

import (
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// The types of this file are what -o json prints. Names are snake_case, durations are seconds, modes are lower case and
// states upper case. Fields are added, never renamed.

// enumName drops an enum value's prefix: MODE_FETCH is fetch with lower, FETCH without. UNSPECIFIED is empty.
func enumName(e interface {
	String() string
	Descriptor() protoreflect.EnumDescriptor
}, prefix string, lower bool,
) string {
	name := strings.TrimPrefix(e.String(), prefix)
	if name == "UNSPECIFIED" {
		return ""
	}
	if lower {
		return strings.ToLower(name)
	}
	return name
}

func modeName(m pb.Mode) string            { return enumName(m, "MODE_", true) }
func stateName(s pb.MigrationState) string { return enumName(s, "MIGRATION_STATE_", false) }

func seconds(d *durationpb.Duration) float64 { return d.AsDuration().Seconds() }

// nodeView is one node.
type nodeView struct {
	NodeID      string `json:"node_id"`
	RegionID    string `json:"region_id"`
	Incarnation string `json:"incarnation"`
}

// viewNode returns nil for no node.
func viewNode(n *pb.Node) *nodeView {
	if n.GetNodeId() == "" {
		return nil
	}
	return &nodeView{NodeID: n.GetNodeId(), RegionID: n.GetRegionId(), Incarnation: n.GetIncarnation()}
}

func (n *nodeView) text() string {
	switch {
	case n == nil:
		return "-"
	case n.RegionID == "":
		return n.NodeID
	}
	return n.NodeID + " (" + n.RegionID + ")"
}

// progressView counts pages that moved.
type progressView struct {
	PagesDone      int64   `json:"pages_done"`
	PagesTotal     int64   `json:"pages_total"`
	BytesDone      int64   `json:"bytes_done"`
	BytesTotal     int64   `json:"bytes_total"`
	ElapsedSeconds float64 `json:"elapsed_seconds"`
}

// migrationView is one migration as it stands; what is not known yet is zero.
type migrationView struct {
	MigrationID      string        `json:"migration_id"`
	RequestID        string        `json:"request_id"`
	Tenant           string        `json:"tenant"`
	SessionID        string        `json:"session_id"`
	State            string        `json:"state"`
	Mode             string        `json:"mode"`
	Code             string        `json:"code"`
	Message          string        `json:"message"`
	Ownership        string        `json:"ownership"`
	Source           *nodeView     `json:"source"`
	Epoch            uint64        `json:"epoch"`
	BlocksTotal      int64         `json:"blocks_total"`
	BlocksPresent    int64         `json:"blocks_present"`
	BlocksMoved      int64         `json:"blocks_moved"`
	BlocksComputed   int64         `json:"blocks_computed"`
	BlocksUsable     int64         `json:"blocks_usable"`
	Pages            int64         `json:"pages"`
	PagesRetried     int64         `json:"pages_retried"`
	Bytes            int64         `json:"bytes"`
	WireBytes        int64         `json:"wire_bytes"`
	DuplicateBytes   int64         `json:"duplicate_bytes"`
	Replanned        string        `json:"replanned"` // why a fetch was given up midway; empty when none was
	Tokens           int64         `json:"tokens"`
	TailTokens       int64         `json:"tail_tokens"`
	StaleTailTokens  int64         `json:"stale_tail_tokens"`
	Seconds          float64       `json:"seconds"`
	TransferSeconds  float64       `json:"transfer_seconds"`
	WarmSeconds      *float64      `json:"warm_seconds"` // of a hybrid until every block was here; null otherwise
	PredictedSeconds float64       `json:"predicted_seconds"`
	Decided          string        `json:"decided"` // mode is what was carried out
	Shadow           bool          `json:"shadow"`
	Fidelity         string        `json:"fidelity"`
	AgeSeconds       float64       `json:"age_seconds"`
	Progress         *progressView `json:"progress"`
}

// viewMigration reads a migration; of one that is not terminal the report is missing.
func viewMigration(m *pb.Migration) migrationView {
	v := migrationView{
		MigrationID: m.GetMigrationId(), RequestID: m.GetRequestId(),
		Tenant: m.GetSession().GetTenant(), SessionID: m.GetSession().GetSessionId(),
		State: stateName(m.GetState()), Mode: modeName(m.GetPlan().GetWinner()), AgeSeconds: seconds(m.GetAge()),
	}
	if p := m.GetProgress(); p != nil {
		v.Progress = &progressView{
			PagesDone: p.GetPagesDone(), PagesTotal: p.GetPagesTotal(), BytesDone: p.GetBytesDone(), BytesTotal: p.GetBytesTotal(),
			ElapsedSeconds: seconds(p.GetElapsed()),
		}
	}
	if r := m.GetReport(); r != nil {
		v.report(r)
	}
	return v
}

// origins says where the blocks come from.
func (v *migrationView) origins() string {
	text := fmt.Sprintf("%d were here, %d moved", v.BlocksPresent, v.BlocksMoved)
	if v.Mode == "hybrid" {
		text += fmt.Sprintf(", %d prefilled meanwhile, %s twice", v.BlocksComputed, bytesText(v.DuplicateBytes))
	}
	return text
}

func (v *migrationView) report(r *pb.MigrationReport) {
	v.State, v.Mode = stateName(r.GetState()), modeName(r.GetMode())
	v.Decided, v.Shadow = modeName(r.GetDecided()), r.GetShadow()
	v.Code, v.Message = r.GetCode(), r.GetMessage()
	v.Ownership = enumName(r.GetOwnership(), "OWNERSHIP_", true)
	v.Source, v.Epoch = viewNode(r.GetSource()), r.GetEpoch()
	v.BlocksTotal, v.BlocksPresent, v.BlocksMoved, v.BlocksUsable = r.GetBlocksTotal(), r.GetBlocksPresent(), r.GetBlocksMoved(), r.GetBlocksUsable()
	v.Replanned = r.GetReplanned()
	if w := r.GetWarm(); w != nil {
		s := seconds(w)
		v.WarmSeconds = &s
	}
	v.BlocksComputed, v.DuplicateBytes = r.GetBlocksComputed(), r.GetDuplicateBytes()
	v.Pages, v.PagesRetried = r.GetPages(), r.GetPagesRetried()
	v.Bytes, v.WireBytes = r.GetBytes(), r.GetWireBytes()
	v.Tokens, v.TailTokens, v.StaleTailTokens = r.GetTokens(), r.GetTailTokens(), r.GetStaleTailTokens()
	v.Seconds, v.TransferSeconds, v.PredictedSeconds = seconds(r.GetTotal()), seconds(r.GetTransfer()), r.GetPredictedSeconds()
	v.Fidelity = enumName(r.GetFidelity(), "FIDELITY_", true)
}

// sessionView is one session as a node sees it.
type sessionView struct {
	Tenant        string `json:"tenant"`
	SessionID     string `json:"session_id"`
	OwnerNodeID   string `json:"owner_node_id"`
	Tokens        int64  `json:"tokens"`
	Blocks        int64  `json:"blocks"`
	BlocksPresent int64  `json:"blocks_present"`
	Epoch         uint64 `json:"epoch"`
	Version       uint64 `json:"version"`
	RepinSeq      uint64 `json:"repin_seq"`
	LayoutPin     string `json:"layout_pin"`
	Fidelity      string `json:"fidelity"`
}

func viewSession(s *pb.SessionStatus) sessionView {
	r := s.GetSession()
	return sessionView{
		Tenant: r.GetRef().GetTenant(), SessionID: r.GetRef().GetSessionId(), OwnerNodeID: r.GetOwnerNodeId(), Tokens: r.GetTokens(),
		Blocks: s.GetBlocksTotal(), BlocksPresent: s.GetBlocksPresent(), Epoch: r.GetEpoch(), Version: r.GetVersion(),
		RepinSeq: r.GetRepinSeq(), LayoutPin: hex.EncodeToString(r.GetLayoutPin()), Fidelity: enumName(r.GetFidelity(), "FIDELITY_", true),
	}
}

// linkView is one link.
type linkView struct {
	Peer               *nodeView `json:"peer"`
	Address            string    `json:"address"`
	Connected          bool      `json:"connected"`
	Error              string    `json:"error"`
	Stripes            uint32    `json:"stripes"`
	RTTMinSeconds      float64   `json:"rtt_min_seconds"`
	RTTSmoothedSeconds float64   `json:"rtt_smoothed_seconds"`
	GoodputBps         float64   `json:"goodput_bps"`
	Measured           bool      `json:"measured"`
	AgeSeconds         float64   `json:"age_seconds"`
	BytesSent          int64     `json:"bytes_sent"`
	BytesReceived      int64     `json:"bytes_received"`
	PacketsLost        int64     `json:"packets_lost"`
	EgressBacklogBytes int64     `json:"egress_backlog_bytes"`
	Transfers          int64     `json:"transfers"`
	Streams            int64     `json:"streams"`
	// What is known of the path.
	Goodput  estimateView `json:"goodput"`  // bit/s
	Capacity estimateView `json:"capacity"` // bit/s
	RTT      estimateView `json:"rtt"`      // seconds
	Loss     estimateView `json:"loss"`     // 0 to 1
	Ramp     estimateView `json:"ramp"`     // seconds
	// What codecs make of pages.
	CodecRatio    estimateView   `json:"codec_ratio"` // page bytes over what they took coded
	CodecRate     estimateView   `json:"codec_rate"`  // page bit/s at the slower end
	PagesSent     pageCodingView `json:"pages_sent"`
	PagesReceived pageCodingView `json:"pages_received"`
}

// pageCodingView counts pages that went one way.
type pageCodingView struct {
	PageBytes   int64   `json:"page_bytes"`
	WireBytes   int64   `json:"wire_bytes"`
	CodedBytes  int64   `json:"coded_bytes"`
	BusySeconds float64 `json:"busy_seconds"`
	Codec       string  `json:"codec"` // of the last pages; empty before there were any
}

func viewPageCoding(c *pb.PageCoding) pageCodingView {
	return pageCodingView{
		PageBytes: c.GetPageBytes(), WireBytes: c.GetWireBytes(), CodedBytes: c.GetCodedBytes(), BusySeconds: seconds(c.GetBusy()), Codec: c.GetCodec(),
	}
}

// text is the codec of the last pages and what it has made of all of them.
func (c pageCodingView) text() string {
	if c.PageBytes == 0 || c.WireBytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%s %.3g:1", c.Codec, float64(c.PageBytes)/float64(c.WireBytes))
}

// estimateView is a number with what it is worth.
type estimateView struct {
	Value      float64 `json:"value"`
	Spread     float64 `json:"spread"`
	Samples    int64   `json:"samples"`
	AgeSeconds float64 `json:"age_seconds"`
	Basis      string  `json:"basis"` // unknown, measured, persisted, configured
}

func viewEstimate(e *pb.Estimate) estimateView {
	v := estimateView{Value: e.GetValue(), Spread: e.GetSpread(), Samples: e.GetSamples(), AgeSeconds: seconds(e.GetAge()), Basis: "unknown"}
	switch e.GetBasis() {
	case pb.EstimateBasis_ESTIMATE_BASIS_MEASURED, pb.EstimateBasis_ESTIMATE_BASIS_PERSISTED, pb.EstimateBasis_ESTIMATE_BASIS_CONFIGURED:
		v.Basis = enumName(e.GetBasis(), "ESTIMATE_BASIS_", true)
	case pb.EstimateBasis_ESTIMATE_BASIS_UNSPECIFIED, pb.EstimateBasis_ESTIMATE_BASIS_UNKNOWN:
	}
	return v
}

// text is the number, and how old it is; format puts it into words.
func (e estimateView) text(format func(float64) string) string {
	switch e.Basis {
	case "measured":
		return fmt.Sprintf("%s (%s ago)", format(e.Value), secondsText(e.AgeSeconds))
	case "persisted":
		return fmt.Sprintf("%s (remembered, %s ago)", format(e.Value), secondsText(e.AgeSeconds))
	case "configured":
		return format(e.Value) + " (prior)"
	}
	return "?"
}

func viewLink(l *pb.LinkStatus) linkView {
	return linkView{
		Peer: viewNode(l.GetPeer()), Address: l.GetAddress(), Connected: l.GetConnected(), Error: l.GetError(), Stripes: l.GetStripes(),
		RTTMinSeconds: seconds(l.GetRttMin()), RTTSmoothedSeconds: seconds(l.GetRttSmoothed()), GoodputBps: l.GetGoodputBps(),
		Measured: l.GetMeasured(), AgeSeconds: seconds(l.GetAge()), BytesSent: l.GetBytesSent(), BytesReceived: l.GetBytesReceived(),
		PacketsLost: l.GetPacketsLost(), EgressBacklogBytes: l.GetEgressBacklogBytes(), Transfers: l.GetTransfers(), Streams: l.GetStreams(),
		Goodput: viewEstimate(l.GetGoodput()), Capacity: viewEstimate(l.GetCapacity()), RTT: viewEstimate(l.GetRtt()), Loss: viewEstimate(l.GetLoss()),
		Ramp: viewEstimate(l.GetRamp()), CodecRatio: viewEstimate(l.GetCodecRatio()), CodecRate: viewEstimate(l.GetCodecRate()),
		PagesSent: viewPageCoding(l.GetPagesSent()), PagesReceived: viewPageCoding(l.GetPagesReceived()),
	}
}

// arenaView is one arena.
type arenaView struct {
	EngineID         string `json:"engine_id"`
	Engine           string `json:"engine"`
	ModelID          string `json:"model_id"`
	LayoutPin        string `json:"layout_pin"`
	Path             string `json:"path"`
	BlockBytes       int64  `json:"block_bytes"`
	Slots            int64  `json:"slots"`
	SlotsFree        int64  `json:"slots_free"`
	SlotsReserved    int64  `json:"slots_reserved"`
	SlotsCommitted   int64  `json:"slots_committed"`
	SlotsDraining    int64  `json:"slots_draining"`
	Leases           int64  `json:"leases"`
	LeasedBlocks     int64  `json:"leased_blocks"`
	Evictions        int64  `json:"evictions"`
	ChecksumFailures int64  `json:"checksum_failures"`
	PinnedBytes      int64  `json:"pinned_bytes"`
	PinNote          string `json:"pin_note"`
	Broken           bool   `json:"broken"`
}

func viewArena(a *pb.ArenaStatus) arenaView {
	return arenaView{
		EngineID: a.GetEngineId(), Engine: a.GetEngine(), ModelID: a.GetLayout().GetModelId(), LayoutPin: hex.EncodeToString(a.GetLayoutPin()),
		Path: a.GetPath(), BlockBytes: a.GetBlockBytes(), Slots: a.GetSlots(), SlotsFree: a.GetSlotsFree(),
		SlotsReserved: a.GetSlotsReserved(), SlotsCommitted: a.GetSlotsCommitted(), SlotsDraining: a.GetSlotsDraining(),
		Leases: a.GetLeases(), LeasedBlocks: a.GetLeasedBlocks(), Evictions: a.GetEvictions(), ChecksumFailures: a.GetChecksumFailures(),
		PinnedBytes: a.GetPinnedBytes(), PinNote: a.GetPinNote(), Broken: a.GetBroken(),
	}
}

// statusView is one node's status.
type statusView struct {
	Node               *nodeView   `json:"node"`
	Version            string      `json:"version"`
	UptimeSeconds      float64     `json:"uptime_seconds"`
	GPU                string      `json:"gpu"`
	Shadow             bool        `json:"shadow"`
	ActiveMigrations   int64       `json:"active_migrations"`
	Offers             int64       `json:"offers"`
	EgressBacklogBytes int64       `json:"egress_backlog_bytes"`
	Goroutines         int64       `json:"goroutines"`
	Certificate        *certStatus `json:"certificate"`
	Policy             *policyStat `json:"policy"`
	Sessions           sessionStat `json:"sessions"`
	Arenas             []arenaView `json:"arenas"`
}

// sessionStat counts what a daemon knows of sessions.
type sessionStat struct {
	Owned     int64 `json:"owned"`
	Forwarded int64 `json:"forwarded"`
	Elsewhere int64 `json:"elsewhere"` // were to come and have not
	Bytes     int64 `json:"bytes"`
	MaxBytes  int64 `json:"max_bytes"`
	Expired   int64 `json:"expired"`
	Displaced int64 `json:"displaced"`
}

func viewSessions(s *pb.SessionsStatus) sessionStat {
	return sessionStat{
		Owned: s.GetOwned(), Forwarded: s.GetForwarded(), Elsewhere: s.GetElsewhere(), Bytes: s.GetBytes(), MaxBytes: s.GetMaxBytes(),
		Expired: s.GetExpired(), Displaced: s.GetDisplaced(),
	}
}

func (s sessionStat) text() string {
	if s.MaxBytes == 0 {
		return "-" // a daemon that does not tell
	}
	out := fmt.Sprintf("%d owned, %d forwarded; %s of %s", s.Owned, s.Forwarded, bytesText(s.Bytes), bytesText(s.MaxBytes))
	if s.Elsewhere > 0 {
		out += fmt.Sprintf("; %d were to come and have not: engines here can't publish them", s.Elsewhere)
	}
	if s.Displaced > 0 {
		out += fmt.Sprintf("; %d forgotten early, for room", s.Displaced)
	}
	return out
}

// certStatus is a daemon's certificate.
type certStatus struct {
	Serial                    string  `json:"serial"`
	ExpiresInSeconds          float64 `json:"expires_in_seconds"`
	AuthorityExpiresInSeconds float64 `json:"authority_expires_in_seconds"`
	Refused                   string  `json:"refused"`
}

// policyStat is a daemon's policy.
type policyStat struct {
	Path    string `json:"path"`
	Rules   int64  `json:"rules"`
	Callers int64  `json:"callers"`
	Limits  int64  `json:"limits"`
	Refused string `json:"refused"`
}

func viewCertificate(c *pb.CertificateStatus) *certStatus {
	if c == nil { // of an older daemon
		return nil
	}
	return &certStatus{c.GetSerial(), seconds(c.GetExpiresIn()), seconds(c.GetAuthorityExpiresIn()), c.GetRefused()}
}

func viewPolicy(p *pb.PolicyStatus) *policyStat {
	if p == nil {
		return nil
	}
	return &policyStat{p.GetPath(), p.GetRules(), p.GetCallers(), p.GetLimits(), p.GetRefused()}
}

func (c *certStatus) text() string {
	if c == nil {
		return "-"
	}
	out := fmt.Sprintf("serial %s, ends in %.1f days", c.Serial, c.ExpiresInSeconds/86400)
	if c.AuthorityExpiresInSeconds != 0 {
		out += fmt.Sprintf(", the authority in %.1f", c.AuthorityExpiresInSeconds/86400)
	}
	return out + refusedText(c.Refused)
}

func (p *policyStat) text() string {
	if p == nil {
		return "none: any node of the authority may pull"
	}
	return fmt.Sprintf("%s: %d rules, %d callers, %d limits", p.Path, p.Rules, p.Callers, p.Limits) + refusedText(p.Refused)
}

// refusedText tells of a file that has changed and is not in force.
func refusedText(why string) string {
	if why == "" {
		return ""
	}
	return "; REFUSED, the one before is in force: " + why
}
