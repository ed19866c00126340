package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/internal/engineload"
)

func (d *doctor) checkDaemon(context.Context) Finding {
	start := "systemctl start kvferryd, or kvferryd --config " + d.ConfigPath
	if d.Daemon != nil {
		if want := d.Config.Node; d.Configured && d.ConfigErr == nil && (d.Daemon.Node != want.ID || d.Daemon.Region != want.Region) {
			return fail("restart it with "+d.ConfigPath+", or give --addr of the daemon that runs with that file",
				"%s is node %s of region %s; %s says node %s of region %s", d.DaemonAddr, d.Daemon.Node, d.Daemon.Region, d.ConfigPath, want.ID, want.Region)
		}
		return ok("%s: node %s of region %s, release %s", d.DaemonAddr, d.Daemon.Node, d.Daemon.Region, orName(d.Daemon.Version, "unknown"))
	}
	err := d.DaemonErr
	text := "was not asked"
	if err != nil {
		text = oneLine(err)
	}
	switch {
	case err == nil:
		return unknown("the daemon %s", text)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EACCES), strings.Contains(text, "permission denied"):
		return fail("run this as root or as a member of the socket's group (arena.group): sudo kvferry doctor", "%s may not be opened: %s", d.DaemonAddr, text)
	case d.DaemonWanted:
		return fail(start+"; or give the --addr at which it listens", "no daemon answers at %s: %s", d.DaemonAddr, text)
	}
	return warn(start, "no daemon answers at %s: %s", d.DaemonAddr, text)
}

// tryListen binds listen.quic for a moment. It is called once: two at a time would be in each other's way.
func (d *doctor) tryListen() error {
	conn, err := net.ListenPacket("udp", d.Config.Listen.QUIC)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (d *doctor) checkListen(context.Context) Finding {
	if f, isSet := d.settings(); !isSet {
		return f
	}
	at := d.Config.Listen.QUIC
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return unknown("not looked at: see config")
	}
	const other = "set listen.quic to 0.0.0.0:7441, or to an address of this host"
	for _, p := range d.peers {
		switch {
		case isLoopback(host) && !isLoopback(p.host()):
			return fail(other, "%s is reached from this host only, and %s is at %s", at, p.node, p.address)
		case isPrivate(host) && isPublic(p.host()):
			return warn("forward UDP port "+port+" to "+host+" at the NAT, or set listen.quic to a public address", "%s is private, and %s is at %s", at, p.node, p.address)
		}
	}
	if d.Daemon != nil && port == "0" {
		return warn("set listen.quic to a fixed port, such as 0.0.0.0:7441", "%s is a port of the system's choice: peers can't be told which", at)
	}
	err = d.bound()
	ours := d.Daemon != nil && (!d.Configured || d.Daemon.Node == d.Config.Node.ID)
	switch {
	case err == nil:
		if ours && d.Configured && d.Daemon.PID != 0 {
			return warn("restart kvferryd with "+d.ConfigPath, "the daemon runs, and nothing is bound to UDP %s: it runs with another listen.quic", at)
		}
		return ok("UDP %s is free", at)
	case errors.Is(err, syscall.EADDRINUSE) && ours:
		return ok("the daemon is bound to UDP %s", at)
	case errors.Is(err, syscall.EADDRINUSE):
		return fail(fmt.Sprintf("ss -lunp 'sport = :%s' shows who; stop it, or set listen.quic to another port", port), "UDP %s is held by another process than the daemon that was asked", at)
	case errors.Is(err, syscall.EACCES):
		return fail("set listen.quic to a port above 1023", "UDP %s: %v", at, err)
	}
	return fail(other, "UDP %s: %v", at, err)
}

// checkEngine scrapes one engine. field is what names it.
func checkEngine(ctx context.Context, url, field string) Finding {
	s, err := engineload.New(engineload.Config{URL: url, Timeout: 5 * time.Second})
	if err != nil {
		return fail("correct "+field, "%v", oneLine(err))
	}
	defer func() { _ = s.Close() }() // always nil
	load, err := s.Scrape(ctx)
	if err == nil {
		return ok("%s: %s", url, load)
	}
	if se, isScrape := errors.AsType[*engineload.ScrapeError](err); isScrape {
		text := fmt.Sprintf("%s: %v", se.URL, se.Kind)
		if se.Err != nil {
			text += ": " + se.Err.Error()
		}
		fix := "curl -s '" + se.URL + "' shows what is there"
		if se.Fix != "" {
			fix = se.Fix + ": " + fix
		}
		return fail(fix, "%s", text)
	}
	return unknown("%v", err)
}
