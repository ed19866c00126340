package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const (
	// plansMagic begins the file; a ListPlansResponse follows, oldest first.
	plansMagic = "kvferry plans 1\n"
	// maxPlansBytes bounds the file: of more the newest are written.
	maxPlansBytes = 16 << 20
	// maxPlanText bounds one string of a record that is read.
	maxPlanText = 4096
	// plansEvery is how often what changed is written.
	plansEvery = time.Minute
)

// openPlans reads the file. Its error is to be logged; plans can be used.
func openPlans(file string, keep int) (*plans, error) {
	p := &plans{keep: keep, file: file}
	p.mu.written = time.Now()
	b, ok, err := readState(file, maxPlansBytes)
	if err != nil {
		return p, fmt.Errorf("read past plans: %w", err)
	}
	if !ok {
		return p, nil
	}
	records, err := decodePlans(b)
	if err != nil {
		return p, fmt.Errorf("read past plans: %s: %w", file, err)
	}
	p.mu.records = slices.Clone(records[max(0, len(records)-keep):])
	return p, nil
}

// flush writes what changed, not more often than every plansEvery unless now.
func (p *plans) flush(now bool) error {
	p.mu.Lock()
	if p.file == "" || !p.mu.changed || !now && time.Since(p.mu.written) < plansEvery {
		p.mu.Unlock()
		return nil
	}
	records := slices.Clone(p.mu.records)
	p.mu.changed, p.mu.written = false, time.Now()
	p.mu.Unlock()
	b, err := encodePlans(records)
	if err == nil {
		err = writeWhole(p.file, b)
	}
	if err != nil {
		return fmt.Errorf("write past plans: %w", err)
	}
	return nil
}

// encodePlans writes as many of the newest records as the file may hold, and none that decodePlans would refuse.
func encodePlans(records []*pb.PlanRecord) ([]byte, error) {
	records = slices.DeleteFunc(slices.Clone(records), func(r *pb.PlanRecord) bool { return checkRecord(r) != nil })
	size, first := len(plansMagic), len(records)
	for first > 0 {
		n := proto.Size(records[first-1])
		if size += n + 8; size > maxPlansBytes { // 8: tag and length
			break
		}
		first--
	}
	return proto.MarshalOptions{}.MarshalAppend([]byte(plansMagic), &pb.ListPlansResponse{Plans: records[first:]})
}

// decodePlans reads what encodePlans wrote; fields of a later release are dropped. Everything in it can be shown.
func decodePlans(b []byte) ([]*pb.PlanRecord, error) {
	if len(b) > maxPlansBytes {
		return nil, fmt.Errorf("more than %d bytes", maxPlansBytes)
	}
	rest, ok := bytes.CutPrefix(b, []byte(plansMagic))
	if !ok {
		return nil, fmt.Errorf("it does not begin with %q", plansMagic)
	}
	var in pb.ListPlansResponse
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(rest, &in); err != nil {
		return nil, err
	}
	for i, r := range in.GetPlans() {
		if err := checkRecord(r); err != nil {
			return nil, fmt.Errorf("record %d: %w", i, err)
		}
	}
	return in.GetPlans(), nil
}

// checkRecord holds a record to what the daemon makes.
func checkRecord(r *pb.PlanRecord) error {
	switch ratio := r.ActualOverPredicted; {
	case r.GetMigrationId() == "" || r.GetPlan() == nil:
		return errors.New("it has no id or no plan")
	case ratio != nil && !(*ratio > 0):
		return fmt.Errorf("it took %v of what was predicted", *ratio)
	case r.GetEnded().CheckValid() != nil:
		return r.GetEnded().CheckValid()
	}
	return checkShown(r.ProtoReflect())
}

// checkShown refuses numbers that are none, and text that can't be shown, anywhere in m.
func checkShown(m protoreflect.Message) (err error) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := func(v protoreflect.Value) error {
			switch f.Kind() {
			case protoreflect.MessageKind:
				return checkShown(v.Message())
			case protoreflect.StringKind:
				if s := v.String(); len(s) > maxPlanText || !printable(s) {
					return fmt.Errorf("%s is %d bytes that can't be shown", f.FullName(), len(s))
				}
			case protoreflect.DoubleKind:
				if x := v.Float(); math.IsNaN(x) || math.IsInf(x, 0) {
					return fmt.Errorf("%s is %v", f.FullName(), x)
				}
			default:
			}
			return nil
		}
		if !f.IsList() {
			err = one(v)
			return err == nil
		}
		for i := range v.List().Len() {
			if err = one(v.List().Get(i)); err != nil {
				break
			}
		}
		return err == nil
	})
	return err
}

// openPlans reads the plans of earlier runs.
func (d *Daemon) openPlans(memoryOnly bool) {
	file := ""
	if !memoryOnly {
		file = filepath.Join(d.cfg.StateDir, "plans.pb")
	}
	var err error
	if d.plans, err = openPlans(file, d.cfg.Migration.Keep); err != nil {
		d.log.LogAttrs(context.Background(), slog.LevelWarn, "past plans are dropped", slog.Any("error", err))
	}
}

// keepPlans writes the plans that have come, when it is time to.
func (d *Daemon) keepPlans(now bool) {
	if err := d.plans.flush(now); err != nil {
		d.log.LogAttrs(context.Background(), slog.LevelWarn, "plans are not kept", slog.Any("error", err))
	}
}
