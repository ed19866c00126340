package chaosreal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Config is what Run and the other entry points take. Zero is the documented default.
type Config struct {
	// Runs is how many seeds are run, from Seed on, 1 to 100000. Default 30.
	Runs int
	// Seed is the first. Every value is a seed.
	Seed uint64
	// Parallel is how many runs go on at a time, 1 to 16: they mostly wait. Default 3.
	Parallel int
	// Kvferryd and Kvferry are the binaries. Required.
	Kvferryd, Kvferry string
	// ArenaDir is a memory filesystem. Default /dev/shm.
	ArenaDir string
	// Keep keeps the folder of a run that failed, with its logs, and says where it is.
	Keep bool
	// Explain tells the plan and the events of every run, not of those alone that failed.
	Explain bool
	// Out takes progress and the table. Nil: nobody is told.
	Out io.Writer
}

// Deadlines of what is run. A migration's answer may be late by the grace, as its call to the owner may be: four calls.
const (
	moveDeadline = 6 * time.Second
	moveGrace    = 10 * time.Second

	callTimeout     = time.Second
	connectTimeout  = time.Second
	progressTimeout = 2 * time.Second
	leaseTTL        = 3 * time.Second

	settleTimeout = 30 * time.Second // for what must come right by itself after healing
	readyTimeout  = 30 * time.Second // for a process to come up on a busy machine
)

func (c Config) withDefaults() Config {
	if c.Runs == 0 {
		c.Runs = 30
	}
	if c.Parallel == 0 {
		c.Parallel = 3
	}
	if c.ArenaDir == "" {
		c.ArenaDir = "/dev/shm"
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	return c
}

// Validate reports every fault, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Runs < 1 || c.Runs > 100000 {
		errs = append(errs, fmt.Errorf("chaosreal: Runs %d: must be 1 to 100000", c.Runs))
	}
	if c.Parallel < 1 || c.Parallel > 16 {
		errs = append(errs, fmt.Errorf("chaosreal: Parallel %d: must be 1 to 16", c.Parallel))
	}
	for _, bin := range []string{c.Kvferryd, c.Kvferry} {
		if fi, err := os.Stat(bin); err != nil || fi.IsDir() {
			errs = append(errs, fmt.Errorf("chaosreal: binary %q: must be an existing program; build both with `make build`", bin))
		}
	}
	if fi, err := os.Stat(c.ArenaDir); err != nil || !fi.IsDir() {
		errs = append(errs, fmt.Errorf("chaosreal: ArenaDir %q: must be a folder on a memory filesystem", c.ArenaDir))
	}
	return errors.Join(errs...)
}
