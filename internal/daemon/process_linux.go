package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// localCreds is the transport of the unix socket: no encryption, but the kernel says which process is at the other end.
type localCreds struct{}

// localProcess is the process behind a connection to the unix socket.
type localProcess struct {
	credentials.CommonAuthInfo
	pid   int
	uid   uint32
	gid   uint32
	known bool // the kernel said who it is
	pidfd int  // a pidfd owned by the connection; -1 where the kernel has none
	key   processKey
}

// pidfsMagic is the type of the filesystem on which each process has an inode of its own (Linux 6.9 and later); before,
// all pidfds share one.
const pidfsMagic = 0x50494446

// identify sets the process's key: what the kernel knows it by, its number where that is all there is, or the
// connection. A process of another pid namespace, a sibling container's, has no number here, and is 0.
func (p *localProcess) identify() {
	var fs unix.Statfs_t
	var st unix.Stat_t
	switch {
	case p.pidfd >= 0 && unix.Fstatfs(p.pidfd, &fs) == nil && uint32(fs.Type) == pidfsMagic && unix.Fstat(p.pidfd, &st) == nil:
		p.key = processKey{inode: st.Ino}
	case p.pid > 0:
		p.key = processKey{pid: p.pid}
	default:
		p.key = processKey{conn: p}
	}
}

// lastingName is what a process is known by to the next daemon: its key and its number. One that has no key of its own gets a name that nobody has
// again.
func lastingName(p *localProcess) string {
	switch {
	case p == nil:
		return "local"
	case p.key.conn != nil:
		return "conn-" + newID()
	}
	return fmt.Sprintf("%s/%d", p.key, p.pid)
}

// findProcess looks for the process that another daemon called name; alive is false when it is certainly dead. Nil and alive: it can't be told.
// Close is owed.
func findProcess(name string) (p *localProcess, alive bool) {
	key, number, ok := strings.Cut(name, "/")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil || pid <= 0 {
		return nil, true
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, !errors.Is(err, unix.ESRCH)
	}
	p = &localProcess{pid: pid, pidfd: fd}
	if p.identify(); p.key.String() != key { // the number is another one's now
		p.close()
		return nil, false
	}
	return p, true
}

func (p *localProcess) close() { _ = unix.Close(p.pidfd) }

// AuthType names the mechanism.
func (*localProcess) AuthType() string { return "unix-peer" }

// localConn closes the pidfd with the connection.
type localConn struct {
	net.Conn
	once sync.Once
	proc *localProcess
}

func (c *localConn) Close() error {
	c.once.Do(func() {
		if c.proc.pidfd >= 0 {
			_ = unix.Close(c.proc.pidfd)
		}
	})
	return c.Conn.Close()
}

func (localCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	proc := &localProcess{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, pidfd: -1}
	uc, ok := unbounded(conn).(*net.UnixConn)
	if !ok {
		return conn, proc, nil
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, nil, fmt.Errorf("read peer credentials: %w", err)
	}
	var credErr error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr != nil {
			return
		}
		proc.pid, proc.uid, proc.gid, proc.known = int(cred.Pid), cred.Uid, cred.Gid, true
		if pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			proc.pidfd = pidfd
		} else if pidfd, err := unix.PidfdOpen(proc.pid, 0); err == nil { // kernels before 6.5; 0 is refused
			proc.pidfd = pidfd
		}
	})
	if err == nil {
		err = credErr
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read peer credentials: %w", err)
	}
	proc.identify()
	return &localConn{Conn: conn, proc: proc}, proc, nil
}

// ClientHandshake is not used: clients dial the socket without credentials.
func (localCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("unix-peer credentials are for servers")
}

func (localCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peer"}
}
func (c localCreds) Clone() credentials.TransportCredentials { return c }
func (localCreds) OverrideServerName(string) error           { return nil }

// watchProcess calls exited once when p has died, and returns a function that stops watching and waits. It does
// nothing for a process without a pidfd (an in-memory listener), whose holdings end by release only.
func watchProcess(p *localProcess, exited func()) (stop func(), err error) {
	if p == nil || p.pidfd < 0 {
		return func() {}, nil
	}
	fd, err := unix.FcntlInt(uintptr(p.pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("watch process %d: %w", p.pid, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // owner: the engine registry; ends at the process's death or at stop
		died := false
		err := raw.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(poll, 0)
			died = err == nil && n > 0
			return died
		})
		if err == nil && died {
			exited()
			_ = file.Close()
		}
	})
	return func() {
		_ = file.Close()
		wg.Wait()
	}, nil
}
