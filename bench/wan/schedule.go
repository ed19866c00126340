package wan

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// An Action is what an Event does to a link.
type Action int

const (
	Set  Action = iota + 1 // give the link the event's Model
	Cut                    // cut it
	Mend                   // undo Cut; "heal" in the text
	Stop                   // end the schedule
)

// String is the action's word in the text.
func (a Action) String() string {
	switch a {
	case Set:
		return "set"
	case Cut:
		return "cut"
	case Mend:
		return "heal"
	case Stop:
		return "stop"
	}
	return fmt.Sprintf("action(%d)", int(a))
}

// An Event is one line of a schedule.
type Event struct {
	At     time.Duration // since the schedule's start, ascending
	Action Action
	Model  Model // of Set: the whole model from here on
	Line   int   // in the text, from 1
}

// A Schedule is what happens to a link over time.
type Schedule []Event

// Bounds of the text of a schedule.
const (
	maxSchedule     = 1 << 20 // bytes
	maxScheduleTime = 365 * 24 * time.Hour
)

// ParseSchedule reads a schedule, one event a line; empty lines and those that
// begin with # count for nothing. Times ascend; nothing follows a stop.
//
//	at 10s set rtt=150ms,rate=50Mbps    keys that are not named keep their values
//	at 20s cut
//	at 25s heal
//	at 30s stop
//
// base is the model at the start. An error names the line, what is wrong and
// what is allowed. The text has at most 1 MiB.
func ParseSchedule(r io.Reader, base Model) (Schedule, error) {
	if err := base.Validate(); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: r, N: maxSchedule + 1}
	scan := bufio.NewScanner(limited)
	var out Schedule
	for n := 1; scan.Scan(); n++ {
		text := strings.TrimSpace(scan.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		e, err := parseEvent(text, base)
		if err != nil {
			return nil, fmt.Errorf("wan: schedule line %d: %w", n, err)
		}
		e.Line = n
		if len(out) > 0 {
			last := out[len(out)-1]
			if last.Action == Stop {
				return nil, fmt.Errorf("wan: schedule line %d: %q comes after the stop of line %d: remove it, or move the stop to the end", n, text, last.Line)
			}
			if e.At < last.At {
				return nil, fmt.Errorf("wan: schedule line %d: at %v comes after at %v of line %d: put the lines in the order of their times", n, e.At, last.At, last.Line)
			}
		}
		if e.Action == Set {
			base = e.Model
		}
		out = append(out, e)
	}
	switch err := scan.Err(); {
	case limited.N == 0:
		return nil, fmt.Errorf("wan: schedule of more than %d bytes: that is the most that is read", maxSchedule)
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("wan: schedule: a line is longer than %d bytes", bufio.MaxScanTokenSize)
	case err != nil:
		return nil, fmt.Errorf("wan: read schedule: %w", err)
	}
	return out, nil
}

// form is what a line may be, for errors.
const form = `"at TIME set KEY=VALUE,...", "at TIME cut", "at TIME heal" or "at TIME stop", as in "at 10s set rtt=150ms,rate=50Mbps"`

func parseEvent(text string, base Model) (Event, error) {
	words := strings.Fields(text)
	if len(words) < 3 || words[0] != "at" {
		return Event{}, fmt.Errorf("%.80q: want %s", text, form)
	}
	at, err := time.ParseDuration(words[1])
	if err != nil || at < 0 || at > maxScheduleTime {
		return Event{}, fmt.Errorf("time %.80q: want a duration from 0s to %v, such as 10s", words[1], maxScheduleTime)
	}
	e := Event{At: at}
	rest := words[3:]
	switch words[2] {
	case "set":
		if len(rest) != 1 {
			return Event{}, fmt.Errorf("%.80q: want one word after set, without spaces, as in set rtt=150ms,rate=50Mbps", text)
		}
		e.Action = Set
		e.Model, err = base.With(rest[0])
		return e, err
	case "cut":
		e.Action = Cut
	case "heal":
		e.Action = Mend
	case "stop":
		e.Action = Stop
	default:
		return Event{}, fmt.Errorf("action %.80q: want set, cut, heal or stop", words[2])
	}
	if len(rest) > 0 {
		return Event{}, fmt.Errorf("%.80q: nothing may follow %v", text, e.Action)
	}
	return e, nil
}

// A Shaper is a link, or a pair of links, that a schedule changes: a Link, a
// Relay.
type Shaper interface {
	SetModel(Model) error
	Cut()
	Heal()
}

// Run changes link as the schedule says, calls each, where it is not nil, after
// every event, and returns true at a stop. Without one it returns false after
// the last event, or when ctx ends.
func (s Schedule) Run(ctx context.Context, link Shaper, each func(Event)) (stopped bool) {
	began := time.Now()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for _, e := range s {
		timer.Reset(time.Until(began.Add(e.At)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
		switch e.Action {
		case Set:
			if err := link.SetModel(e.Model); err != nil {
				panic("BUG: schedule with a model that is not valid: " + err.Error()) // ParseSchedule has validated it
			}
		case Cut:
			link.Cut()
		case Mend:
			link.Heal()
		case Stop:
		}
		if each != nil {
			each(e)
		}
		if e.Action == Stop {
			return true
		}
	}
	return false
}
