package kvstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Defaults of ArenaConfig and of leases.
const (
	// DefaultArenaDir is where arenas live unless ArenaConfig.Dir says otherwise.
	DefaultArenaDir = "/dev/shm"
	// DefaultMaxLeases is the default of ArenaConfig.MaxLeases: about 150 MB of leases of one block each, so that a
	// reader that takes block by block, or one that forgets to release, meets it late.
	DefaultMaxLeases = 1 << 20
	// DefaultLeaseTTL is what a ttl of 0 means.
	DefaultLeaseTTL = 30 * time.Second
	// MaxSlots bounds the slots of one arena.
	MaxSlots = 1 << 24

	maxArenaName = 240 // a name of the system's has 255 bytes: "+index" follows
)

// LockMode says whether the arena's memory is locked (mlock).
type LockMode uint8

// The lock modes.
const (
	// LockTry, the default, locks as much as RLIMIT_MEMLOCK allows. What is not locked shows in ArenaStats.
	LockTry LockMode = iota
	// LockOff locks nothing; the memory is still touched in the background.
	LockOff
)

// ArenaConfig says what OpenArena opens. The value is not retained.
type ArenaConfig struct {
	// Dir is a directory on tmpfs, hugetlbfs or ramfs. Default DefaultArenaDir.
	Dir string
	// Name is the file's name in Dir: 1 to 240 bytes, no separator. Required.
	Name string
	// Layout is the shape of the blocks. Required.
	Layout Layout
	// Bytes is the size wanted, at least one stride. What does not fill a whole slot is not allocated. Worked number:
	// 64 GiB hold 13,107 blocks of Llama-3.1-70B, 209,712 tokens. Required.
	Bytes int64
	// Lock says whether to lock the memory. Default LockTry.
	Lock LockMode
	// GroupID is the group that owns the file, beside the daemon's user; its members may map it. 0 leaves the
	// process's group.
	GroupID int
	// MaxLeases bounds the leases held at once, whatever they hold; beyond it Acquire is ErrLeaseLimit. Default
	// DefaultMaxLeases; negative is unlimited.
	MaxLeases int
	// TenantSlots returns the most slots a tenant may use; 0 or negative is unlimited. Nil means no quotas. It is
	// called with the arena locked: it must return at once and must not call the arena.
	TenantSlots func(Tenant) int
	// Keep, unless empty, keeps the arena over Close and over the process's death, for the next OpenArena with the same Dir, Name, Keep, Layout
	// and Bytes: it says whose arena it is, at most 256 bytes. An index lies beside the file (its name and "+index", mode 0600): about 400
	// bytes and 4 a page a slot. Arenas on hugetlbfs are not kept. The memory stays taken until somebody removes the
	// files, as RemoveStaleArenas does.
	Keep string
	// AllowDisk permits a Dir that is not a memory filesystem. For tests.
	AllowDisk bool
}

// Validate returns nil or every violation joined, each a *FieldError.
func (c ArenaConfig) Validate() error {
	errs := []error{c.Layout.Validate()}
	bad := func(field, value, allowed, fix string) {
		errs = append(errs, &FieldError{Field: field, Value: value, Allowed: allowed, Fix: fix})
	}
	if c.Name == "" || len(c.Name) > maxArenaName || c.Name != filepath.Base(c.Name) || c.Name == "." || c.Name == ".." {
		bad("Name", strconv.Quote(clip(c.Name)), fmt.Sprintf("1 to %d bytes without a path separator", maxArenaName), "give a plain file name")
	}
	if errs[0] == nil {
		stride := c.Layout.Stride()
		if n := c.Bytes / stride; n < 1 || n > MaxSlots {
			bad("Bytes", strconv.FormatInt(c.Bytes, 10), fmt.Sprintf("%d (one slot) to %d", stride, stride*MaxSlots), "size the arena for the tokens to keep")
		}
	}
	if strings.HasSuffix(c.Name, indexSuffix) {
		bad("Name", strconv.Quote(clip(c.Name)), "not the name of an index", "leave the suffix "+indexSuffix+" to the store")
	}
	if len(c.Keep) > maxIdentity {
		bad("Keep", fmt.Sprintf("%d bytes", len(c.Keep)), fmt.Sprintf("at most %d bytes", maxIdentity), "use a short name that is stable over restarts")
	}
	if c.Lock > LockOff {
		bad("Lock", strconv.Itoa(int(c.Lock)), "LockTry, LockOff", "use one of the two modes")
	}
	if c.GroupID < 0 {
		bad("GroupID", strconv.Itoa(c.GroupID), "0 (leave the group) or a group id", "look the group up with getent group")
	}
	return errors.Join(errs...)
}

func (c ArenaConfig) withDefaults() ArenaConfig {
	if c.Dir == "" {
		c.Dir = DefaultArenaDir
	}
	if c.MaxLeases == 0 {
		c.MaxLeases = DefaultMaxLeases
	}
	c.Layout.FP8ScaleDigest = append([]byte(nil), c.Layout.FP8ScaleDigest...)
	return c
}
