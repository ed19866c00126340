package fault

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Shot is one fault of a schedule: what strikes at which crossings of a boundary.
type Shot struct {
	Boundary    Boundary
	First, Last uint64 // ordinals, from 1; Last is First for one crossing
	Kind        Kind
	For         time.Duration // of a stall, more than 0
}

// String is the shot's text form.
func (s Shot) String() string {
	out := s.Boundary.String() + ":" + strconv.FormatUint(s.First, 10)
	if s.Last != s.First {
		out += "-" + strconv.FormatUint(s.Last, 10)
	}
	out += ":" + s.Kind.String()
	if s.Kind == Stall {
		out += "=" + s.For.String()
	}
	return out
}

// Schedule is which faults strike.
type Schedule []Shot

// String is the schedule's text form; "" for none.
func (s Schedule) String() string {
	parts := make([]string, len(s))
	for i, shot := range s {
		parts[i] = shot.String()
	}
	return strings.Join(parts, ",")
}

// MaxStall bounds a stall.
const MaxStall = time.Hour

// maxShots bounds a schedule in text.
const maxShots = 1 << 12

// Parse reads a schedule's text form. An error names the shot, what is wrong with it, and what is allowed.
func Parse(text string) (Schedule, error) {
	var out Schedule
	if text == "" {
		return out, nil
	}
	for _, part := range strings.Split(text, ",") {
		if len(out) == maxShots {
			return nil, fmt.Errorf("schedule of faults: more than %d shots", maxShots)
		}
		shot, err := parseShot(part)
		if err != nil {
			return nil, fmt.Errorf("schedule of faults: %.64q: %w, as in commit:3:kill or read:5-9:corrupt", part, err)
		}
		out = append(out, shot)
	}
	return out, nil
}

func parseShot(text string) (Shot, error) {
	var s Shot
	fields := strings.Split(text, ":")
	if len(fields) != 3 {
		return s, fmt.Errorf("has %d fields; it must be boundary:ordinal:kind", len(fields))
	}
	b := slices.Index(boundaryNames[:], fields[0])
	if b < 0 {
		return s, fmt.Errorf("no boundary %.32q; it must be one of %s", fields[0], strings.Join(boundaryNames[:], ", "))
	}
	s.Boundary = Boundary(b)
	first, last, isRange := strings.Cut(fields[1], "-")
	var err error
	if s.First, err = ordinal(first); err != nil {
		return s, err
	}
	if s.Last = s.First; isRange {
		if s.Last, err = ordinal(last); err == nil && s.Last <= s.First {
			err = fmt.Errorf("ordinals %s; the last must be above the first", fields[1])
		}
	}
	if err != nil {
		return s, err
	}
	name, arg, hasArg := strings.Cut(fields[2], "=")
	k := slices.Index(kindNames[:], name)
	if k < 0 {
		return s, fmt.Errorf("no kind %.32q; it must be one of %s", name, strings.Join(kindNames[:], ", "))
	}
	s.Kind = Kind(k)
	if hasArg != (s.Kind == Stall) {
		return s, fmt.Errorf("kind %.32q; stall takes a duration, as in stall=2s, and no other kind does", fields[2])
	}
	if hasArg {
		if s.For, err = time.ParseDuration(arg); err != nil || s.For <= 0 || s.For > MaxStall || s.For.String() != arg {
			return s, fmt.Errorf("duration %.32q; it must be more than 0 and at most %v, in its shortest form", arg, MaxStall)
		}
	}
	return s, nil
}

func ordinal(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 || text[0] == '+' || text[0] == '0' {
		return 0, fmt.Errorf("ordinal %.32q; it must be 1 or more", text)
	}
	return n, nil
}

// Choice is one thing that Draw may choose.
type Choice struct {
	Boundary Boundary
	Kind     Kind
	// Reach is the highest ordinal; low ones are as likely as high ones on a logarithmic scale.
	Reach uint64
	// Run is the most crossings in a row, 0: 1.
	Run uint64
	// Longest is a stall's.
	Longest time.Duration
}

// Draw draws a schedule of n shots. The same source and choices give the same schedule. No choices give none.
func Draw(r *rand.Rand, n int, from []Choice) Schedule {
	var out Schedule
	for range n {
		if len(from) == 0 {
			break
		}
		c := from[r.IntN(len(from))]
		s := Shot{Boundary: c.Boundary, Kind: c.Kind}
		s.First = uint64(math.Exp(r.Float64() * math.Log(float64(max(c.Reach, 1))))) // 1 to Reach
		s.First = min(max(s.First, 1), max(c.Reach, 1))
		s.Last = s.First
		if c.Run > 1 {
			s.Last += r.Uint64N(c.Run)
		}
		if c.Kind == Stall {
			s.For = time.Duration(1+r.Int64N(max(int64(c.Longest/time.Millisecond), 1))) * time.Millisecond
		}
		out = append(out, s)
	}
	return out
}
