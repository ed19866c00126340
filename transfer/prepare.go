package transfer

import (
	"errors"
	"fmt"

	"github.com/kvferry/kvferry/transfer/wire"
)

// checkPairs holds a transfer against the memories of both sides and returns
// the local list.
func (l *Link) checkPairs(op Op, local, remote []Desc, opts TransferOptions) (pairs, error) {
	if err := checkOptions(op, local, remote, opts); err != nil {
		return pairs{}, err
	}
	theirs := l.Metadata()
	shapes := make(map[MemoryID]MemoryShape, len(theirs.Memories))
	for _, m := range theirs.Memories {
		shapes[m.ID] = m
	}
	mems, far := make([]*memory, len(local)), make([]*memory, len(local))
	total := 0
	for i := range local {
		mem, err := l.checkLocal(op, i, local[i])
		if err != nil {
			return pairs{}, err
		}
		shape, err := checkRemote(op, i, remote[i], shapes)
		if err != nil {
			return pairs{}, err
		}
		if local[i].Pages != remote[i].Pages || mem.PageBytes != shape.PageBytes {
			return pairs{}, &FieldError{
				Field:   fmt.Sprintf("local[%d] and remote[%d]", i, i),
				Value:   fmt.Sprintf("%d pages of %d bytes and %d of %d", local[i].Pages, mem.PageBytes, remote[i].Pages, shape.PageBytes),
				Allowed: "the same number and size of pages", Fix: "pair descriptors of one shape",
			}
		}
		if total += int(local[i].Pages); total > wire.MaxPages {
			return pairs{}, &FieldError{
				Field: "local", Value: fmt.Sprintf("more than %d pages", wire.MaxPages),
				Allowed: fmt.Sprintf("at most %d pages", wire.MaxPages), Fix: "split the transfer", Err: ErrOutOfRange,
			}
		}
		mems[i], far[i] = mem, &memory{Memory: Memory{PageBytes: shape.PageBytes}}
	}
	here := newPairs(append([]Desc(nil), local...), mems)
	if op == Read {
		return here, overlap("local", here)
	}
	return here, overlap("remote", newPairs(remote, far))
}

func checkOptions(op Op, local, remote []Desc, opts TransferOptions) error {
	var errs []error
	bad := func(field string, value any, allowed, fix string) {
		errs = append(errs, &FieldError{Field: field, Value: value, Allowed: allowed, Fix: fix})
	}
	if op != Read && op != Write {
		bad("op", op, "Read or Write", "choose one")
	}
	if len(local) != len(remote) || len(local) == 0 || len(local) > wire.MaxDescs {
		bad("local and remote", fmt.Sprintf("%d and %d descriptors", len(local), len(remote)),
			fmt.Sprintf("as many of each, 1 to %d", wire.MaxDescs), "pair each local descriptor with a remote one")
	}
	if len(opts.Token) > wire.MaxToken {
		bad("TransferOptions.Token", len(opts.Token), "at most 256 bytes", "pass a handle instead of the data")
	}
	if len(opts.Notify) > wire.MaxNotify {
		bad("TransferOptions.Notify", len(opts.Notify), "at most 65536 bytes", "send the data with a Call")
	}
	if opts.Class >= classes {
		bad("TransferOptions.Class", uint8(opts.Class), "Interactive, Background or Replication", "choose one")
	}
	return errors.Join(errs...)
}

func (l *Link) checkLocal(op Op, i int, d Desc) (*memory, error) {
	field := fmt.Sprintf("local[%d]", i)
	mem, err := l.agent.lookup(d.Memory)
	if err != nil {
		return nil, &FieldError{Field: field, Value: fmt.Sprintf("memory %d", d.Memory), Allowed: "a registered memory", Fix: "register it first", Err: err}
	}
	if op == Read && mem.Sink == nil || op == Write && mem.Source == nil {
		return nil, &FieldError{
			Field: field, Value: fmt.Sprintf("memory %d", d.Memory), Allowed: "a memory with a Sink for reads, a Source for writes",
			Fix: "register it with one", Err: ErrNotPermitted,
		}
	}
	if err := d.inRange(mem.Length, mem.PageBytes); err != nil {
		return nil, &FieldError{Field: field, Value: err, Allowed: "pages within the memory", Fix: "check Offset and Pages", Err: err}
	}
	return mem, nil
}

func checkRemote(op Op, i int, d Desc, shapes map[MemoryID]MemoryShape) (MemoryShape, error) {
	field := fmt.Sprintf("remote[%d]", i)
	shape, ok := shapes[d.Memory]
	if !ok {
		return shape, &FieldError{
			Field: field, Value: fmt.Sprintf("memory %d", d.Memory), Allowed: "a memory of Link.Metadata",
			Fix: "ask the peer which memory it means", Err: ErrUnknownMemory,
		}
	}
	if op == Read && !shape.Readable || op == Write && !shape.Writable {
		return shape, &FieldError{
			Field: field, Value: fmt.Sprintf("memory %d", d.Memory), Allowed: "a readable memory for reads, a writable one for writes",
			Fix: "have the peer register it so", Err: ErrNotPermitted,
		}
	}
	if err := d.inRange(shape.Length, shape.PageBytes); err != nil {
		return shape, &FieldError{Field: field, Value: err, Allowed: "pages within the memory", Fix: "check Offset and Pages", Err: err}
	}
	return shape, nil
}
