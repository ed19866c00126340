package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/wire"
)

// maxDials bounds the connections of a link that are set up at a time: the
// peer's queue of accepted connections holds 32.
const maxDials = 8

// dialling is the one attempt to reach a peer that concurrent Connects share.
type dialling struct {
	done chan struct{}
	link *Link // set at once
	// Set before done is closed.
	err     error
	aborted bool // the one that dialled gave up
}

// Connect returns the live link that this agent dialled to the node want, or
// dials one at addr ("host:port"). A link that want dialled to here does not
// count: each side dials, and restores, its own. Concurrent calls share one
// attempt.
//
// Errors: *CertificateError (ErrCertificate), ErrPeerIdentity, *VersionError
// (ErrVersion), ErrUnreachable, a *RemoteError for another refusal (ErrBusy: the
// peer has 8 links from this node, or no room for connections), ErrClosed, context.Cause(ctx).
func (a *Agent) Connect(ctx context.Context, addr string, want PeerID) (*Link, error) {
	target, err := resolve(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %q: %w", want, err)
	}
	for {
		d, mine, err := a.dialling(want, target)
		if err != nil {
			return nil, fmt.Errorf("connect to %q: %w", want, err)
		}
		if mine {
			d.err = d.link.connect(ctx)
			if d.err != nil {
				d.aborted = ctx.Err() != nil
				d.link.end(d.err, codeOf(d.err))
			}
			close(d.done)
		}
		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to %q at %s: %w", want, addr, context.Cause(ctx))
		}
		switch {
		case d.err == nil && d.link.Err() == nil:
			return d.link, nil
		case d.err != nil && (mine || !d.aborted):
			return nil, fmt.Errorf("connect to %q at %s: %w", want, addr, d.err)
		}
		// It ended meanwhile, or the caller that dialled went away: dial again.
		a.forget(d.link)
	}
}

func (a *Agent) dialling(want PeerID, target net.Addr) (d *dialling, mine bool, err error) {
	a.mu.Lock()
	d = a.mu.dialled[want]
	a.mu.Unlock()
	if d != nil {
		return d, false, nil
	}
	var nonce wire.Nonce
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, false, err
	}
	l, err := a.add(want, nonce, target)
	if err != nil {
		return nil, false, err
	}
	d = &dialling{done: make(chan struct{}), link: l}
	a.mu.Lock()
	other := a.mu.dialled[want]
	if other == nil {
		a.mu.dialled[want] = d
	}
	a.mu.Unlock()
	if other != nil {
		l.end(fmt.Errorf("dialled twice: %w", ErrClosed), CodeOK)
		return other, false, nil
	}
	return d, true, nil
}

func resolve(ctx context.Context, addr string) (net.Addr, error) {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return net.UDPAddrFromAddrPort(ap), nil
	}
	bad := func(err error) error {
		return &FieldError{Field: "addr", Value: fmt.Sprintf("%q", addr), Allowed: "host:port", Fix: "give the peer's host and UDP port", Err: err}
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, bad(err)
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return nil, bad(err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, bad(err)
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(ips[0].Unmap(), uint16(n))), nil
}

// connect dials all stripes and waits for the peer's metadata.
func (l *Link) connect(ctx context.Context) error {
	cfg := &l.agent.cfg
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.ConnectTimeout, ErrUnreachable)
	defer cancel()
	stop := context.AfterFunc(l.ctx, cancel)
	defer stop()
	if err := l.dialMissing(ctx); err != nil {
		if ended := l.Err(); ended != nil {
			return ended
		}
		return err
	}
	select {
	case <-l.ready:
		return nil
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// dialMissing dials the stripes that the link lacks, all at once but paced. It
// succeeds when the link then has one at least; otherwise the first error tells
// why. A refusal, which would meet all of them, stops the rest.
func (l *Link) dialMissing(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.mu.Lock()
	missing := l.mu.path.policy.target - l.mu.dialling
	for _, s := range l.mu.stripes {
		if !s.draining {
			missing--
		}
	}
	l.mu.dialling += max(missing, 0)
	l.mu.Unlock()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	slots := make(chan struct{}, maxDials)
	for range missing {
		l.mu.Lock()
		l.mu.nextStripe++
		number := l.mu.nextStripe
		l.mu.Unlock()
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := l.dialStripe(ctx, number)
			l.mu.Lock()
			l.mu.dialling--
			l.mu.Unlock()
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = err
			}
			if !errors.Is(err, ErrUnreachable) {
				cancel(err)
			}
		})
	}
	wg.Wait()
	l.mu.Lock()
	live := len(l.mu.stripes)
	l.mu.Unlock()
	if live > 0 {
		return nil
	}
	return first
}

// dialStripe opens a socket, a connection on it and the stream for control, and
// says hello.
func (l *Link) dialStripe(ctx context.Context, number uint32) (err error) {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	cfg := &l.agent.cfg
	plain, err := cfg.DialPacket(ctx)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	packet, err := wrapUDP(plain)
	if err != nil {
		return errors.Join(fmt.Errorf("open socket: %w", err), plain.Close())
	}
	s := &stripe{number: number, packet: packet}
	if !cfg.Repair.Off() {
		s.repairConn = repair.Wrap(packet, cfg.Repair)
		s.packet = s.repairConn.PacketConn()
	}
	s.transport = &quic.Transport{Conn: s.packet}
	defer func() {
		if err == nil {
			return
		}
		if s.conn != nil { // any other code would end the link at a peer that took the stripe in
			_ = s.conn.CloseWithError(quic.ApplicationErrorCode(CodeStripeLost), clip(err.Error(), 256))
		}
		err = errors.Join(err, s.closeSocket())
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.HandshakeTimeout, ErrUnreachable)
	defer cancel()
	if s.conn, err = l.dialPatiently(ctx, s.transport); err != nil {
		return l.dialError(ctx, err)
	}
	l.meet(s.conn.ConnectionStats().MinRTT)
	peer, err := l.hello(ctx, s)
	if err != nil {
		return l.dialError(ctx, err)
	}
	return l.join(s, peer)
}

// dialPatiently dials again where the other side has no room at the moment: too many are on their way there.
func (l *Link) dialPatiently(ctx context.Context, from *quic.Transport) (*quic.Conn, error) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		conn, err := from.Dial(ctx, l.addr, l.agent.cfg.clientTLS(l.want), l.agent.quic)
		te, ok := errors.AsType[*quic.TransportError](err)
		if !ok || !te.Remote || te.ErrorCode != quic.ConnectionRefused {
			return conn, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-timer.C:
		}
	}
}

// meet has more stripes dialled at once where the first handshake shows that the
// path is long.
func (l *Link) meet(rtt time.Duration) {
	l.mu.Lock()
	before := l.mu.path.policy.target
	more := l.mu.path.policy.met(rtt) > before
	l.mu.Unlock()
	if more {
		l.kickKeeper()
	}
}

// hello names the link to the peer and learns which process answers.
func (l *Link) hello(ctx context.Context, s *stripe) (Peer, error) {
	cfg := &l.agent.cfg
	stream, err := s.conn.OpenStreamSync(ctx)
	if err != nil {
		return Peer{}, fmt.Errorf("open control stream: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Now()) })
	defer stop()
	body, err := wire.AppendHello(nil, wire.Hello{Nonce: l.nonce, Stripe: s.number, Name: string(cfg.Name), Incarnation: cfg.Incarnation, Repair: cfg.offerRepair(), Codecs: codecMask()})
	if err != nil {
		return Peer{}, fmt.Errorf("encode hello: %w", err)
	}
	if err := writeHello(stream, cfg.version, body); err != nil {
		return Peer{}, err
	}
	p, body, err := readHello(stream)
	if err != nil {
		return Peer{}, err
	}
	if p.Version != cfg.version {
		return Peer{}, &VersionError{Ours: cfg.version, Theirs: p.Version, Remote: true}
	}
	a, err := wire.DecodeHelloAnswer(body)
	if err != nil {
		return Peer{}, fmt.Errorf("hello answer: %w", err)
	}
	if a.Code != uint16(CodeOK) {
		return Peer{}, &RemoteError{Code: Code(a.Code), Message: a.Message}
	}
	if PeerID(a.Name) != l.want {
		return Peer{}, fmt.Errorf("%w: wanted %q, it calls itself %q", ErrPeerIdentity, l.want, a.Name)
	}
	peer, err := cfg.identify(s.conn.ConnectionState().TLS.PeerCertificates[0]) // verified: clientTLS
	if err != nil {
		return Peer{}, err
	}
	peer.Incarnation = a.Incarnation
	if err := l.startRepair(s, a.Repair); err != nil {
		return Peer{}, err
	}
	l.coder.meet(a.Codecs)
	s.stream = stream
	return peer, nil
}

// dialError finds the reason of a failed dial: what a callback of the handshake
// found, what the peer said, or nothing heard in time.
func (l *Link) dialError(ctx context.Context, err error) error {
	if errors.Is(err, ErrPeerIdentity) || errors.Is(err, ErrVersion) {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(connError(err), ErrCertificate) && !errors.Is(connError(err), ErrBusy) {
		if !errors.Is(cause, ErrUnreachable) {
			return cause
		}
		err = cause
	}
	err = connError(err)
	if errors.Is(err, ErrUnreachable) {
		return fmt.Errorf("no answer from %s: is the peer up, and is its UDP port open? %w", l.addr, err)
	}
	return err
}

// redial restores the missing stripes of a dialled link. With none left it tries
// until the connect timeout and then gives the peer up.
func (l *Link) redial() {
	ctx, cancel := context.WithTimeoutCause(l.ctx, l.agent.cfg.ConnectTimeout, ErrUnreachable)
	defer cancel()
	for {
		if l.dials.Wait(ctx) != nil {
			break
		}
		if l.dialMissing(ctx) == nil || l.Err() != nil {
			return
		}
		if ctx.Err() != nil {
			break
		}
	}
	l.mu.Lock()
	live := len(l.mu.stripes)
	l.mu.Unlock()
	if live == 0 {
		l.end(fmt.Errorf("peer %q: %w: %w", l.want, ErrPeerGone, ErrUnreachable), CodePeerGone)
	}
}
