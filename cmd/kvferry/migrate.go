package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// cancelTimeout bounds the call that cancels after Ctrl-C.
const cancelTimeout = 10 * time.Second

// migrateFlags are the flags that make a MigrateRequest. Zero is not given.
type migrateFlags struct {
	session, tenant, engine, source, mode string
	class                                 string
	deadline                              time.Duration
	repinSeq                              uint64
	takeover, shadow, redirectAllowed     bool
	requestID                             string
	expectedTurns                         float64
	landedLayers                          int64
	order                                 string
}

// sessionFlags are the names of addSession's and addChoice's flags besides --session.
var sessionFlags = []string{"tenant", "engine", "source", "mode", "class", "deadline", "expected-turns", "redirect-allowed"}

// modeNames are the values of --mode.
var modeNames = map[string]pb.Mode{
	"auto": pb.Mode_MODE_UNSPECIFIED, "redirect": pb.Mode_MODE_REDIRECT, "fetch": pb.Mode_MODE_FETCH, "recompute": pb.Mode_MODE_RECOMPUTE, "hybrid": pb.Mode_MODE_HYBRID,
}

// classNames are the values of --class.
var classNames = map[string]pb.TransferClass{
	"interactive": pb.TransferClass_TRANSFER_CLASS_UNSPECIFIED, "background": pb.TransferClass_TRANSFER_CLASS_BACKGROUND,
	"replication": pb.TransferClass_TRANSFER_CLASS_REPLICATION,
}

// addSession adds the flags that name a session.
func (f *migrateFlags) addSession(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.session, "session", "", "session id")
	fl.StringVar(&f.tenant, "tenant", "", "tenant of the session (default: the default tenant)")
	fl.StringVar(&f.engine, "engine", "", "engine that is to hold it; needed when several fit")
	fl.StringVar(&f.source, "source", "", "node id of the likely owner; the daemon looks for it otherwise")
}

// addChoice adds the flags that bear on the choice of mode.
func (f *migrateFlags) addChoice(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.Var(newChoice(&f.mode, "auto", "auto", "fetch", "hybrid", "recompute", "redirect"), "mode", "auto, fetch, hybrid (an engine that claims prefills the front meanwhile), recompute or redirect")
	fl.Var(newChoice(&f.class, "interactive", "interactive", "background", "replication"), "class", "interactive, background or replication: what the source sends first")
	fl.Var(newDuration(&f.deadline, 0, time.Millisecond), "deadline", "time within which the session must be warm")
	fl.Var(newNumber(&f.expectedTurns, 0, 1e-6, 1e9), "expected-turns", "turns that will follow, for the price of redirect")
	fl.BoolVar(&f.redirectAllowed, "redirect-allowed", false, "the caller can serve the session from where it is")
	complete(cmd, "mode", "auto", "fetch", "hybrid", "recompute", "redirect")
	complete(cmd, "class", "interactive", "background", "replication")
}

// request is the flags as a request.
func (f *migrateFlags) request(id string) *pb.MigrateRequest {
	r := &pb.MigrateRequest{
		RequestId: id, Session: &pb.SessionRef{Tenant: f.tenant, SessionId: f.session}, EngineId: f.engine, SourceHint: f.source,
		Mode: modeNames[f.mode], Class: classNames[f.class], RepinSeq: f.repinSeq, Takeover: f.takeover, ExpectedTurns: f.expectedTurns, RedirectAllowed: f.redirectAllowed,
	}
	r.Shadow = f.shadow
	r.LandedLayers, r.Order = uint32(f.landedLayers), orderNames[f.order]
	if f.deadline > 0 {
		r.Deadline = durationpb.New(f.deadline)
	}
	return r
}

func (a *app) newMigrate() *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use:   "migrate --session ID",
		Short: "Make a session warm at the daemon at --addr",
		Long: `migrate asks the daemon at --addr, the destination, to make a session warm there, and follows it to the end.

The daemon plans first; --mode overrides the choice. Ctrl-C cancels the migration, and the session stays whole at its
owner. A connection that breaks does not cancel it: run the same command with the --request-id that was printed to
follow it again.

It succeeds when the session is ready to go on: COMMITTED (moved), RECOMPUTE (to be prefilled here) or REDIRECT (left where it
is).`,
		Example: `  kvferry migrate --session chat-17
  kvferry migrate --session chat-17 --source us-1 --mode fetch --deadline 20s -o json
  kvferry migrate --session chat-17 --repin-seq 42 --takeover     # the source is gone; ours now
  kvferry migrate --session chat-17 --shadow      # what would be done, as the daemon would do it
  kvferry migrate --session chat-17 --landed-layers 16 --order layer-group`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.session == "" {
				return usagef("", "--session ID; 'kvferry sessions' lists them", "no session is named")
			}
			if f.takeover && f.repinSeq == 0 {
				return usagef("", "--repin-seq N above the recorded one ('kvferry sessions' shows it)", "--takeover needs --repin-seq")
			}
			if f.order == "layer-group" && f.landedLayers == 0 {
				return usagef("", "--landed-layers N, the layers a group", "--order layer-group needs --landed-layers")
			}
			return a.migrate(cmd.Context(), f)
		},
	}
	f.addSession(cmd)
	f.addChoice(cmd)
	fl := cmd.Flags()
	fl.Uint64Var(&f.repinSeq, "repin-seq", 0, "the proxy's own number of this re-pin; a lower one than recorded is refused")
	fl.BoolVar(&f.takeover, "takeover", false, "take ownership even if the source can't hand over; needs --repin-seq")
	fl.BoolVar(&f.shadow, "shadow", false, "plan, log and remember the plan, and move nothing ('kvferry plans' shows it)")
	fl.Var(newCount(&f.landedLayers, 0, 1, 1024), "landed-layers", "layers a group: show when which group of layers has landed")
	fl.Var(newChoice(&f.order, "blocks", "blocks", "layer-group"), "order",
		"blocks: whole ones, front first; layer-group: --landed-layers layers of every block, then the next ones, at the cost of keeping nothing when it fails")
	complete(cmd, "order", "blocks", "layer-group")
	fl.StringVar(&f.requestID, "request-id", "", "name of this request; the same one follows a running migration again (default: random)")
	return cmd
}

// migrateView is what migrate prints at the end, and migrations get.
type migrateView struct {
	Migration migrationView `json:"migration"`
	Plan      *planView     `json:"plan"`
	Layers    []layersView  `json:"landed_layers,omitempty"` // when --landed-layers is given
}

// migrate runs one migration to its end.
func (a *app) migrate(ctx context.Context, f migrateFlags) error {
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the stream has ended
	client := pb.NewMigrationServiceClient(conn)
	id := f.requestID
	if id == "" {
		id = "cli-" + rand.Text()
	}
	p := a.newProgress(f.session, id)
	layers := landedLayers{began: time.Now()}
	final, err := follow(ctx, client, f.request(id), p, &layers)
	p.close()
	if err != nil {
		return err
	}
	v := migrateView{Migration: viewMigration(final), Plan: viewPlan(final.GetPlan()), Layers: layers.rows}
	if err := a.print(v, v.table); err != nil {
		return err
	}
	if bad := reportFault(v.Migration.State, v.Migration.Code, v.Migration.Message); bad != nil {
		return bad
	}
	return nil
}

// watcher sees a migration go by.
type watcher interface {
	update(m *pb.Migration)
}

// follow starts or re-attaches to a migration and returns it when it is terminal. When ctx ends first, the migration is
// cancelled and returned as the daemon then sees it.
func follow(ctx context.Context, client pb.MigrationServiceClient, req *pb.MigrateRequest, w watcher, layers *landedLayers) (*pb.Migration, error) {
	// The stream outlives ctx, so that a cancelled migration is followed to its terminal state.
	streamCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	stream, err := client.Migrate(streamCtx, req)
	if err != nil {
		return nil, err
	}
	cancelled := make(chan error, 1) // capacity 1: the callback never waits
	watching := context.AfterFunc(ctx, func() {
		callCtx, done := context.WithTimeout(streamCtx, cancelTimeout)
		defer done()
		_, err := client.CancelMigration(callCtx, &pb.CancelMigrationRequest{RequestId: req.GetRequestId()})
		cancelled <- err
		if err != nil { // nothing more can come of waiting
			stop()
		}
	})
	defer watching()

	m := &pb.Migration{RequestId: req.GetRequestId(), Session: req.GetSession()}
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && m.GetReport() != nil:
			return m, nil
		case err != nil && ctx.Err() != nil:
			return nil, cancelFault(req.GetRequestId(), <-cancelled)
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("the daemon ended the stream without a report; see 'kvferry migrations get --request-id %s'", req.GetRequestId())
		case err != nil && m.GetState() != 0:
			f := *faultOf(err)
			f.Fix = fmt.Sprintf("the migration goes on without us: run the same command with --request-id %s to follow it", req.GetRequestId())
			return nil, &f
		case err != nil:
			return nil, err
		}
		merge(m, resp)
		layers.add(resp.GetLandedLayers())
		w.update(m)
	}
}

// cancelFault tells what came of a cancel.
func cancelFault(id string, err error) error {
	if err == nil {
		return &fault{
			Code: exitCancelled, Reason: "CANCELLED", Message: "the migration was cancelled",
			Fix: "the session is whole at its owner; migrate again when it suits",
		}
	}
	return &fault{
		Code: exitCancelled, Reason: "CANCELLED", Message: "interrupted, and the daemon could not be told: " + faultOf(err).Message,
		Fix: "the migration may go on: see 'kvferry migrations get --request-id " + id + "'",
	}
}

// merge adds one message of the stream to what is known.
func merge(m *pb.Migration, r *pb.MigrateResponse) {
	m.MigrationId, m.State = r.GetMigrationId(), r.GetState()
	if r.GetPlan() != nil {
		m.Plan = r.GetPlan()
	}
	if r.GetProgress() != nil {
		m.Progress = r.GetProgress()
	}
	if r.GetReport() != nil {
		m.Report = r.GetReport()
	}
}

func (v migrateView) table(w io.Writer) {
	v.Migration.table(w)
	layersTable(w, v.Layers)
	if v.Plan != nil {
		row(w)
		v.Plan.table(w)
	}
}

// table writes one migration for a person; what is not known is left out.
func (v migrationView) table(w io.Writer) {
	row(w, "state:", v.State)
	row(w, "session:", v.SessionID+tenantText(v.Tenant))
	switch {
	case v.Shadow && v.Decided == "":
		row(w, "mode:", "shadow: it did not come to a decision, and nothing moved")
	case v.Shadow:
		row(w, "mode:", "shadow: "+v.Decided+" was decided, and nothing moved")
	case v.Decided != "" && v.Decided != v.Mode:
		row(w, "mode:", v.Mode+", "+v.Decided+" was decided")
	default:
		row(w, "mode:", dash(v.Mode))
	}
	if v.Message != "" {
		row(w, "message:", v.Message)
	}
	if v.Replanned != "" {
		row(w, "given up:", v.Replanned)
	}
	if v.Source != nil {
		row(w, "source:", v.Source.text())
	}
	if v.Ownership != "" {
		row(w, "ownership:", fmt.Sprintf("%s, epoch %d", v.Ownership, v.Epoch))
	}
	if v.BlocksTotal > 0 {
		row(w, "blocks:", fmt.Sprintf("%d usable of %d (%s)", v.BlocksUsable, v.BlocksTotal, v.origins()))
	}
	if v.Pages > 0 {
		row(w, "moved:", fmt.Sprintf("%d pages, %s (%s on the wire, %d pages again) in %s%s", v.Pages, bytesText(v.Bytes), bytesText(v.WireBytes),
			v.PagesRetried, secondsText(v.TransferSeconds), goodputText(v.Bytes, v.TransferSeconds)))
	}
	if v.Tokens > 0 {
		row(w, "tokens:", fmt.Sprintf("%d, of which %d are to be prefilled here (%d grew meanwhile)", v.Tokens, v.TailTokens, v.StaleTailTokens))
	}
	if v.Seconds > 0 {
		took := secondsText(v.Seconds)
		if v.PredictedSeconds > 0 {
			took += ", predicted " + secondsText(v.PredictedSeconds)
		}
		row(w, "took:", took)
	}
	if p := v.Progress; p != nil && v.Seconds == 0 {
		row(w, "progress:", fmt.Sprintf("%d of %d pages, %s of %s", p.PagesDone, p.PagesTotal, bytesText(p.BytesDone), bytesText(p.BytesTotal)))
	}
	row(w, "migration:", dash(v.MigrationID))
	row(w, "request id:", dash(v.RequestID))
}

func tenantText(tenant string) string {
	if tenant == "" {
		return ""
	}
	return " of tenant " + tenant
}

func goodputText(bytes int64, seconds float64) string {
	if seconds <= 0 {
		return ""
	}
	return ", " + rateText(8*float64(bytes)/seconds)
}
