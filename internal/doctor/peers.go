package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/transfer"
)

// peer is one daemon to reach.
type peer struct {
	d                     *doctor
	node, region, address string
	link                  *Link // as the running daemon sees it, or nil

	probed chan struct{} // closed when reached is set
	// reached is written by checkUDP, and read after probed is closed.
	reached bool
}

func (p *peer) host() string {
	host, _, err := net.SplitHostPort(p.address)
	if err != nil {
		return p.address
	}
	return host
}

func (p *peer) port() string {
	_, port, _ := net.SplitHostPort(p.address)
	return port
}

// linkNote is what the running daemon says of its link.
func (p *peer) linkNote() string {
	switch {
	case p.link == nil:
		return ""
	case p.link.Connected:
		return "; the daemon's link is up"
	case p.link.Error != "":
		return "; the daemon's last attempt: " + p.link.Error
	}
	return "; the daemon has no link yet"
}

func (p *peer) checkUDP(ctx context.Context) Finding {
	defer close(p.probed)
	res, err := probe(ctx, p.address)
	p.reached = err == nil
	setAddress := fmt.Sprintf("set the address of %s in peers to its host and the port of its listen.quic", p.node)
	var dns *net.DNSError
	switch {
	case err == nil:
		return ok("%s answers in %s (%d of %d datagrams)%s", p.address, milliseconds(res.rtt), res.answered, res.sent, p.linkNote())
	case errors.Is(err, syscall.ECONNREFUSED):
		return fail("start kvferryd on "+p.host()+" (systemctl start kvferryd), or "+setAddress, "nothing listens on UDP %s: the host says that the port is closed", p.address)
	case errors.Is(err, errSilent):
		fix := fmt.Sprintf("open UDP port %s to %s in every firewall and security group on the way, both ways, and check that kvferryd runs there; or %s", p.port(), p.host(), setAddress)
		if p.link != nil && p.link.Connected {
			return unknown("%v from %s, but the daemon has a link: the peer may not answer unknown QUIC versions", err, p.address)
		}
		return fail(fix, "%v from %s: UDP is blocked on the way, or nothing is there%s", err, p.address, p.linkNote())
	case errors.As(err, &dns):
		return fail(setAddress, "%s: %v", p.address, err)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fail("ip route get "+p.host()+"; add the route, or "+setAddress, "no route to %s: %v", p.address, err)
	}
	return fail(setAddress, "%s: %v", p.address, err)
}

// checkHandshake opens a link of one connection with the node's own certificate and makes one call over it.
func (p *peer) checkHandshake(ctx context.Context) Finding {
	id, f, usable := p.d.usable()
	if !usable {
		return f
	}
	incarnation, f, safe := p.d.incarnation()
	if !safe {
		return f
	}
	select {
	case <-p.probed:
	case <-ctx.Done():
		return unknown("not tried: see peer.%s.udp", p.node)
	}
	if !p.reached {
		return unknown("not tried: see peer.%s.udp", p.node)
	}
	var region atomic.Pointer[string] // of the certificate that the peer showed
	agent, err := transfer.Open(transfer.Config{
		Name: transfer.PeerID(id.node), Incarnation: incarnation, Stripes: 1, ConnectTimeout: 5 * time.Second, HandshakeTimeout: 5 * time.Second,
		TLS: &tls.Config{Certificates: []tls.Certificate{id.pair}, RootCAs: id.roots, MinVersion: tls.VersionTLS13},
		Identify: func(c *x509.Certificate) (transfer.PeerID, error) {
			r, node, err := certs.Identity(c)
			if err == nil && !c.Equal(id.pair.Leaf) {
				region.Store(&r)
			}
			return transfer.PeerID(node), err
		},
	})
	if err != nil {
		return fail(p.d.issueCommand(), "the certificate can't be used: %v", oneLine(err))
	}
	defer func() { _ = agent.Close() }() // the finding is made
	link, err := agent.Connect(ctx, p.address, transfer.PeerID(p.node))
	if err != nil {
		return p.refused(err)
	}
	if r := region.Load(); r != nil && p.region != "" && *r != p.region {
		return fail(fmt.Sprintf("set the region of %s in peers to %s", p.node, *r), "%s is of region %s by its certificate, and of %s by the configuration", p.node, *r, p.region)
	}
	began := time.Now()
	if len(p.d.Call) > 0 {
		if _, err := link.Call(ctx, p.d.Call); err != nil {
			return fail("run the same release of kvferryd on both nodes; look at the log of "+p.node, "%s proved who it is, and does not answer a call: %v", p.node, err)
		}
	}
	call := time.Since(began)
	st := link.Stats()
	return ok("%s proved to be %s; round trip %s, a call took %s", p.address, p.node, milliseconds(st.RTTMin), milliseconds(call))
}

// refused says why a handshake with a peer that answers UDP failed.
func (p *peer) refused(err error) Finding {
	short := cause(err)
	if ce, isCert := errors.AsType[*transfer.CertificateError](err); isCert {
		fix := fmt.Sprintf("on %s: kvferry certs issue --dir DIR --region %s --node %s, from the authority of tls.ca here", p.host(), orName(p.region, "REGION"), p.node)
		var invalid x509.CertificateInvalidError
		switch {
		case ce.Remote:
			return fail("give both nodes certificates of one authority (kvferry certs issue), and the same tls.ca", "%s refused our certificate: %v", p.node, ce.Err)
		case errors.As(ce.Err, &invalid) && invalid.Reason == x509.Expired:
			return fail(fix+"; check both clocks", "the certificate that %s shows has expired or is not valid yet: %v", p.address, ce.Err)
		}
		return fail(fix, "the certificate that %s shows is refused: %v", p.address, ce.Err)
	}
	switch {
	case errors.Is(err, transfer.ErrPeerIdentity):
		return fail(fmt.Sprintf("set the address of %s in peers to that node's, or issue the node there its own certificate: kvferry certs issue --dir DIR --region %s --node %s", p.node, orName(p.region, "REGION"), p.node),
			"another node answers at %s: %s", p.address, short)
	case errors.Is(err, transfer.ErrVersion):
		return fail("run the same release of kvferryd on both nodes", "%s", short)
	case errors.Is(err, transfer.ErrUnreachable):
		return fail("allow UDP datagrams of 1,280 bytes and more on the whole path: lower the MTU of tunnels (ip link set dev DEV mtu N), and let ICMP 'too big' pass", "%s answers UDP, and no handshake completes: %s", p.address, short)
	}
	return fail("look at the log of kvferryd on "+p.host(), "%s", short)
}

// cause cuts the address that the agent's errors begin with: the finding has it already.
func cause(err error) string {
	text := oneLine(err)
	if _, after, cut := strings.Cut(text, ": "); cut && strings.HasPrefix(text, "connect to ") {
		return after
	}
	return text
}

func orName(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// incarnation is what to call ourselves at peers: they end the links of a node that comes with another incarnation, so
// it must be the running daemon's. Without a daemon any will do; with one that can't be asked, none.
func (d *doctor) incarnation() (string, Finding, bool) {
	if d.Daemon != nil && d.Daemon.Node == d.tls().node {
		return d.Daemon.Incarnation, Finding{}, true
	}
	if errors.Is(d.bound(), syscall.EADDRINUSE) {
		return "", unknown("not tried: something holds listen.quic (%s) and is not the daemon that was asked, at %s; a connection under its name would end its links", d.Config.Listen.QUIC, d.DaemonAddr), false
	}
	return "", Finding{}, true
}

// checkReturn says what can be said of flows that the peer begins.
func (p *peer) checkReturn(context.Context) Finding {
	if f, isSet := p.d.settings(); !isSet {
		return f
	}
	host, port, _ := net.SplitHostPort(p.d.Config.Listen.QUIC)
	if isLoopback(host) && !isLoopback(p.host()) {
		return unknown("not judged: see listen.quic")
	}
	return Finding{
		Status: Unknown, Detail: fmt.Sprintf("a flow that %s begins, to UDP port %s here, is proven by its own doctor only", p.node, port),
		Fix: fmt.Sprintf("on %s: kvferry doctor --config FILE --peer %s", p.host(), orName(p.d.Config.Node.ID, "NODE")),
	}
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

func isPrivate(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.Unmap().IsPrivate() || ip.Unmap().IsLinkLocalUnicast())
}

// isPublic reports an IP address that is routed in the internet; a name is not looked up.
func isPublic(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsGlobalUnicast() && !ip.Unmap().IsPrivate()
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.3g ms", d.Seconds()*1e3) }
