package certs

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Keeper holds a node's certificates and takes in those that its files hold later, so that they are renewed under a
// process that goes on. It is safe for concurrent use.
type Keeper struct {
	files   Files
	current atomic.Pointer[kept]
	mu      struct {
		sync.Mutex
		seen [3]stamp // of the files that current, or the last failure, is of
	}
}

// kept is one reading of the files.
type kept struct {
	material *Material
	tls      *tls.Config
}

// stamp tells a file from what it was.
type stamp struct {
	info os.FileInfo
	time time.Time
	size int64
}

func (s stamp) same(o stamp) bool {
	if s.info == nil || o.info == nil {
		return s.info == nil && o.info == nil
	}
	return s.time.Equal(o.time) && s.size == o.size && os.SameFile(s.info, o.info)
}

// OpenKeeper reads the files as [Load] does, and returns its errors.
func OpenKeeper(f Files) (*Keeper, error) {
	k := &Keeper{files: f}
	k.mu.seen = k.stamps()
	m, err := Load(f)
	if err != nil {
		return nil, err
	}
	k.keep(m)
	return k, nil
}

// Material returns what holds now; it may not be changed.
func (k *Keeper) Material() *Material { return k.current.Load().material }

// TLS returns what holds now for both ends of a handshake: [Material.ServerConfig] with RootCAs. The same pointer comes
// until a reload succeeds; it may not be changed.
func (k *Keeper) TLS() *tls.Config { return k.current.Load().tls }

// Reload takes the files in when one of them is another than at the last look, by its time, size or inode, or in any case
// with force. Changed says that what holds now came from this call. Files that can't be used leave in force what was
// there; they are not looked at again until they change. A certificate of another region or node than the first is
// refused: peers know this process by them.
//
// Errors: those of [Load]; a [*FileError] that wraps a [*PeerError] for another identity.
func (k *Keeper) Reload(force bool) (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.stamps() // before the reading: what is written meanwhile differs at the next look
	same := true
	for i := range now {
		same = same && now[i].same(k.mu.seen[i])
	}
	if same && !force {
		return false, nil
	}
	k.mu.seen = now
	m, err := Load(k.files)
	if err != nil {
		return false, err
	}
	if old := k.Material(); m.Region != old.Region || m.Node != old.Node {
		return false, &FileError{
			Op: "verify", Path: k.files.Cert, Fix: "issue one for this node; a node that is to have another name or region is started anew",
			Err: fmt.Errorf("the certificate names another node: %w", &PeerError{WantRegion: old.Region, WantNode: old.Node, GotRegion: m.Region, GotNode: m.Node}),
		}
	}
	k.keep(m)
	return true, nil
}

func (k *Keeper) keep(m *Material) {
	t := m.ServerConfig()
	t.RootCAs = m.Roots
	k.current.Store(&kept{m, t})
}

func (k *Keeper) stamps() (out [3]stamp) {
	for i, path := range []string{k.files.CA, k.files.Cert, k.files.Key} {
		if info, err := os.Stat(path); err == nil {
			out[i] = stamp{info, info.ModTime(), info.Size()}
		}
	}
	return out
}
