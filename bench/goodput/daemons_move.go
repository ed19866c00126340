package goodput

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// className is a class as people write it.
func className(c pb.TransferClass) string {
	return strings.ToLower(strings.TrimPrefix(c.String(), "TRANSFER_CLASS_"))
}

// keysOf names n fresh blocks and so their bytes: of this seed, run and migration.
func (f *ferry) keysOf(n int, run string) [][]byte {
	f.seq++
	keys := make([][]byte, n)
	for i := range keys {
		h := sha256.New()
		_, _ = fmt.Fprintf(h, "kvferry/bench/%d/%s/%d/%d", f.cfg.Seed, run, f.seq, i) // never fails
		keys[i] = h.Sum(nil)
	}
	return keys
}

func seedOf(key []byte) uint64 { return binary.LittleEndian.Uint64(key) }

// once moves all bytes, in groups of blocks with new names each. An interrupted transfer is no error.
func (f *ferry) once(ctx context.Context, stage string) (*Measure, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f.tell(stage, 0, 0)
	m := &Measure{Complete: true}
	m.daemonCPU = [2]float64{0, 0}
	before, err := f.source.link(ctx, f.destination.node)
	if err != nil {
		return nil, err
	}
	run := rand.Text()
	began, paced := time.Now(), f.cfg.MaxRate > 0
	mine, err := f.destination.link(ctx, f.source.node)
	if err != nil {
		return nil, err
	}
	windows := &windowed{} // of the first group
	for left := f.blocks; left > 0 && m.Complete; {
		n := min(left, f.group)
		left -= n
		first := windows
		if m.Bytes > 0 {
			first = &windowed{}
		}
		if err := f.moveGroup(ctx, m, run, stage, n, first); err != nil {
			return nil, err
		}
		if paced && m.Complete {
			due := began.Add(time.Duration(float64(m.Bytes) * 8 / f.cfg.MaxRate * float64(time.Second)))
			m.Complete = pause(ctx, time.Until(due))
		}
	}
	if paced {
		m.Seconds = time.Since(began).Seconds() // the rests are part of it
	} else if m.Complete {
		m.RampSeconds = ramp(windows.bytes) // of the first group, which alone starts from rest
	}
	if m.Seconds > 0 {
		m.EffectiveBps = float64(m.Bytes) * 8 / m.Seconds
		m.CodedBytes, m.GoodputBps = m.Bytes, m.EffectiveBps // as long as nothing else is known
	}
	f.moved += m.Bytes
	return m, f.counters(context.WithoutCancel(ctx), m, before, mine)
}

// counters takes what both ends counted meanwhile, other traffic of the link included: before is what the source said of the link,
// had what the destination did.
func (f *ferry) counters(ctx context.Context, m *Measure, before, had *pb.LinkStatus) error {
	after, err := f.source.link(ctx, f.destination.node)
	if err != nil {
		return err
	}
	mine, err := f.destination.link(ctx, f.source.node)
	if err != nil {
		return err
	}
	m.Stripes, f.stripes, f.path = int(mine.GetStripes()), int(mine.GetStripes()), pathOfLink(mine)
	if after.GetRttMin() != nil {
		m.RTTMin, m.RTTSmoothed = ptr(after.GetRttMin().AsDuration().Seconds()), ptr(after.GetRttSmoothed().AsDuration().Seconds())
	}
	m.between(before, after, had, mine)
	return nil
}

// between takes the differences of the counters of the source, and of the destination's own. A link that was made anew meanwhile
// has begun to count again: then nothing is known.
func (m *Measure) between(before, after, had, mine *pb.LinkStatus) {
	sent, packets := after.GetBytesSent()-before.GetBytesSent(), after.GetPacketsSent()-before.GetPacketsSent()
	lost, repaired := after.GetPacketsLost()-before.GetPacketsLost(), mine.GetPacketsRepaired()-had.GetPacketsRepaired()
	parity, bytes := after.GetParityPacketsSent()-before.GetParityPacketsSent(), after.GetParityBytesSent()-before.GetParityBytesSent()
	if sent <= 0 || min(lost, repaired, parity, bytes) < 0 {
		return
	}
	m.WireBytes = sent + bytes
	pages := mine.GetPagesReceived().GetPageBytes() - had.GetPagesReceived().GetPageBytes()
	coded := mine.GetPagesReceived().GetWireBytes() - had.GetPagesReceived().GetWireBytes()
	if pages > 0 && coded > 0 { // an older daemon does not tell
		ratio := float64(coded) / float64(pages)
		m.CodedBytes, m.GoodputBps = int64(math.Round(ratio*float64(m.Bytes))), ratio*m.EffectiveBps
	}
	if packets > 0 { // an older daemon does not tell
		m.PacketsSent, m.PacketsLost, m.PacketsRepaired, m.ParityPackets, m.ParityBytes = &packets, &lost, &repaired, &parity, &bytes
	}
}

// pathOfLink is what a daemon knows of the path from its peer; a number out of its configuration does not count.
func pathOfLink(l *pb.LinkStatus) *Path {
	known := func(e *pb.Estimate) *float64 {
		switch e.GetBasis() {
		case pb.EstimateBasis_ESTIMATE_BASIS_MEASURED, pb.EstimateBasis_ESTIMATE_BASIS_PERSISTED:
			return ptr(e.GetValue())
		}
		return nil
	}
	p := Path{known(l.GetGoodput()), known(l.GetCapacity()), known(l.GetLoss()), known(l.GetRamp())}
	if p == (Path{}) {
		return nil
	}
	return &p
}

// moveGroup writes n blocks at the source and migrates them.
func (f *ferry) moveGroup(ctx context.Context, m *Measure, run, stage string, n int, windows *windowed) error {
	keys := f.keysOf(n, run)
	if err := f.source.write(ctx, keys); err != nil {
		if ctx.Err() != nil {
			m.Complete = false
			return nil
		}
		return fmt.Errorf("write %d blocks at the source: %w", n, err)
	}
	cpu := [2]float64{f.source.proc.cpu(), f.destination.proc.cpu()}
	rep, err := f.migrate(ctx, keys, func(p *pb.MigrationProgress) {
		at := p.GetElapsed().AsDuration()
		windows.add(at, p.GetBytesDone())
		f.tell(stage, m.Bytes+p.GetBytesDone(), float64(p.GetBytesDone())*8/max(at.Seconds(), 1e-3))
	})
	for i, e := range []*engine{f.source, f.destination} {
		if now := e.proc.cpu(); now < 0 || cpu[i] < 0 {
			m.daemonCPU[i] = -1
		} else if m.daemonCPU[i] >= 0 {
			m.daemonCPU[i] += now - cpu[i]
		}
	}
	m.Bytes += rep.GetBytes()
	m.Seconds += rep.GetTransfer().AsDuration().Seconds()
	m.PagesAgain += rep.GetPagesRetried()
	switch {
	case err != nil && ctx.Err() != nil:
		m.Complete = false
		return nil
	case err != nil:
		return err
	}
	return f.destination.verify(ctx, keys)
}

// migrate replicates blocks and returns the report. When ctx ends the migration is cancelled, and its report comes with an error.
func (f *ferry) migrate(ctx context.Context, keys [][]byte, progress func(*pb.MigrationProgress)) (*pb.MigrationReport, error) {
	client := pb.NewMigrationServiceClient(f.destination.conn)
	req := &pb.MigrateRequest{
		RequestId: "bench-" + rand.Text(), EngineId: f.destination.id, SourceHint: f.source.node, Mode: pb.Mode_MODE_FETCH, Class: f.cfg.Class, Keys: keys, Deadline: durationpb.New(time.Hour),
		Session: &pb.SessionRef{Tenant: tenant},
	}
	stream, err := client.Migrate(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		u, err := stream.Recv()
		switch {
		case err != nil && ctx.Err() != nil:
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
			defer cancel()
			got, cerr := client.CancelMigration(stop, &pb.CancelMigrationRequest{RequestId: req.GetRequestId()})
			return got.GetMigration().GetReport(), errors.Join(context.Cause(ctx), cerr)
		case errors.Is(err, io.EOF):
			return nil, errors.New("the daemon ended the stream without a report")
		case err != nil:
			return nil, err
		}
		if p := u.GetProgress(); p != nil {
			progress(p)
		}
		if rep := u.GetReport(); rep != nil {
			if rep.GetState() != pb.MigrationState_MIGRATION_STATE_COMMITTED || rep.GetBlocksMoved() != int64(len(keys)) {
				return rep, &MigrationError{rep.GetState(), rep.GetCode(), fmt.Sprintf("%d of %d blocks moved; %s", rep.GetBlocksMoved(), len(keys), rep.GetMessage())}
			}
			return rep, nil
		}
	}
}

// pause waits; false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// windowed are verified bytes at the ends of windows of sampleEvery, drawn straight between what was told.
type windowed struct {
	bytes []int64
	at    time.Duration // told last
	done  int64
}

func (w *windowed) add(at time.Duration, done int64) {
	if at <= w.at {
		return
	}
	for {
		end := time.Duration(len(w.bytes)+1) * sampleEvery
		if end > at {
			break
		}
		w.bytes = append(w.bytes, w.done+int64(float64(done-w.done)*float64(end-w.at)/float64(at-w.at)))
	}
	w.at, w.done = at, done
}
