package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// port is a TCP address of the configuration.
type port struct {
	d             *doctor
	field, at     string
	example       string
	other         string // the field of the other TCP address
	otherAt, what string
}

// ports are the TCP addresses that the daemon binds. Without a file nothing says which.
func (d *doctor) ports() []port {
	if !d.Configured {
		return nil
	}
	l := d.Config.Listen
	return []port{
		{d, "listen.grpc", l.GRPC, "0.0.0.0:7440", "listen.admin", l.Admin, "proxies and operators"},
		{d, "listen.admin", l.Admin, "127.0.0.1:7442", "listen.grpc", l.GRPC, "Prometheus and probes"},
	}
}

// bindTries and bindPause: another doctor may hold a port for the moment that its own look takes.
const (
	bindTries = 4
	bindPause = 50 * time.Millisecond
)

// bind binds a TCP address for a moment.
func bind(ctx context.Context, at string) (err error) {
	for i := range bindTries {
		var l net.Listener
		if l, err = new(net.ListenConfig).Listen(ctx, "tcp", at); err == nil {
			return l.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) || i == bindTries-1 {
			return err
		}
		pause := time.NewTimer(bindPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return err
		case <-pause.C:
		}
	}
	return err
}

// check looks at one port: a daemon whose port is taken does not start.
func (p port) check(ctx context.Context) Finding {
	if f, isSet := p.d.settings(); !isSet {
		return f
	}
	if p.at == "off" {
		return ok("%s is off", p.field)
	}
	host, number, err := net.SplitHostPort(p.at)
	if err != nil {
		return unknown("not looked at: see config")
	}
	ours := p.d.Daemon != nil && p.d.Daemon.Node == p.d.Config.Node.ID
	if number == "0" {
		return warn("set "+p.field+" to a fixed port, such as "+p.example, "%s is a port of the system's choice: %s can't be told which", p.at, p.what)
	}
	if otherHost, otherNumber, err := net.SplitHostPort(p.otherAt); err == nil && number == otherNumber && sameHost(host, otherHost) {
		return fail(fmt.Sprintf("set %s to another port, such as %s", p.field, p.example), "%s and %s are both TCP port %s: the daemon does not start", p.field, p.other, number)
	}
	err = bind(ctx, p.at)
	switch {
	case err == nil && ours && p.d.Daemon.PID != 0:
		return warn("restart kvferryd with "+p.d.ConfigPath, "the daemon runs, and nothing is bound to TCP %s: it runs with another %s", p.at, p.field)
	case err == nil:
		return ok("TCP %s is free", p.at)
	case errors.Is(err, syscall.EADDRINUSE) && ours:
		return ok("the daemon is bound to TCP %s", p.at)
	case errors.Is(err, syscall.EADDRINUSE):
		return fail(fmt.Sprintf("ss -ltnp 'sport = :%s' shows who; stop it, or set %s to another port", number, p.field), "TCP %s is held by another process than the daemon that was asked", p.at)
	case errors.Is(err, syscall.EACCES):
		return fail("set "+p.field+" to a port above 1023", "TCP %s: %v", p.at, err)
	}
	return fail(fmt.Sprintf("set %s to %s, or to an address of this host", p.field, p.example), "TCP %s: %v", p.at, err)
}

// sameHost says that two listeners of one port on these hosts are in each other's way.
func sameHost(a, b string) bool {
	any := func(h string) bool { return h == "" || h == "0.0.0.0" || h == "::" }
	return a == b || any(a) || any(b)
}
