package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/wire"
)

// accept takes connections until the listener closes.
func (a *Agent) accept() {
	for {
		conn, err := a.listener.Accept(a.ctx)
		if err != nil {
			return
		}
		a.wg.Go(func() { a.welcome(conn) })
	}
}

// welcome reads the hello of an accepted connection and joins it to its link. A
// refusal is said in words first, and the connection closed with its code when
// the peer has gone, or after a while.
func (a *Agent) welcome(conn *quic.Conn) {
	ctx, cancel := context.WithTimeoutCause(a.ctx, a.door.patience(), ErrUnreachable)
	defer cancel()
	why, err := a.receive(ctx, conn)
	if err == nil {
		return
	}
	a.door.refused(ctx, why, conn.RemoteAddr(), err)
	select {
	case <-conn.Context().Done():
	case <-ctx.Done():
	}
	_ = conn.CloseWithError(quic.ApplicationErrorCode(codeOf(err)), clip(err.Error(), 256))
}

// receive finds out who dialled, bounds what that peer has on its way, and greets
// it. An error comes with the reason that counts it.
func (a *Agent) receive(ctx context.Context, conn *quic.Conn) (refusal, error) {
	certs := conn.ConnectionState().TLS.PeerCertificates
	if len(certs) == 0 { // RequireAndVerifyClientCert
		return refusedHello, fmt.Errorf("no certificate: %w", ErrPeerIdentity)
	}
	id, err := a.cfg.Identify(certs[0])
	if err != nil {
		id = "" // the hello is answered with why
	}
	g := guestOf(conn)
	if err := g.greet(id); err != nil {
		_ = conn.CloseWithError(quic.ApplicationErrorCode(codeOf(err)), clip(err.Error(), 256)) // it is not worth a stream
		return refusedPeer, err
	}
	return a.greet(ctx, conn, g)
}

func (a *Agent) greet(ctx context.Context, conn *quic.Conn, g *guest) (why refusal, err error) {
	why = refusedHello
	stream, err := conn.AcceptStream(ctx)
	if err != nil {
		return why, fmt.Errorf("accept control stream: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Now()) })
	defer stop()
	s := &stripe{conn: conn, stream: stream, repairConn: a.repair}
	defer func() {
		if err != nil {
			s.endRepair()
		}
	}()
	link, peer, hello, err := a.identifyLink(s)
	if err == nil {
		if err = link.admit(); err == nil {
			defer link.left()
			var full refusal
			if full, err = g.settle(); err == nil {
				link.coder.meet(hello.Codecs)
				err = link.startRepair(s, hello.Repair)
			} else {
				why = full
			}
		} else {
			why = refusedPeer
		}
	}
	ack := wire.HelloAnswer{Code: uint16(codeOf(err)), Name: string(a.cfg.Name), Incarnation: a.cfg.Incarnation}
	if err != nil {
		ack.Message = clip(err.Error(), wire.MaxMessage)
	} else {
		ack.Repair, ack.Codecs = a.cfg.answerRepair(hello.Repair), codecMask()
	}
	body, encErr := wire.AppendHelloAnswer(nil, ack)
	if encErr != nil {
		return why, errors.Join(err, encErr)
	}
	if werr := writeHello(stream, a.cfg.version, body); werr != nil || err != nil {
		return why, errors.Join(err, werr)
	}
	if !stop() { // the deadline may have been set: the stream cannot be used
		return why, context.Cause(ctx)
	}
	return why, link.join(s, peer)
}

// identifyLink finds out who dialled and for which link.
func (a *Agent) identifyLink(s *stripe) (*Link, Peer, wire.Hello, error) {
	p, body, err := readHello(s.stream)
	if err != nil {
		return nil, Peer{}, wire.Hello{}, err
	}
	if p.Version != a.cfg.version {
		return nil, Peer{}, wire.Hello{}, &VersionError{Ours: a.cfg.version, Theirs: p.Version}
	}
	h, err := wire.DecodeHello(body)
	if err != nil {
		return nil, Peer{}, wire.Hello{}, err
	}
	certs := s.conn.ConnectionState().TLS.PeerCertificates
	if len(certs) == 0 { // RequireAndVerifyClientCert
		return nil, Peer{}, wire.Hello{}, fmt.Errorf("no certificate: %w", ErrPeerIdentity)
	}
	peer, err := a.cfg.identify(certs[0])
	if err != nil {
		return nil, Peer{}, wire.Hello{}, err
	}
	if peer.ID != PeerID(h.Name) {
		return nil, Peer{}, wire.Hello{}, fmt.Errorf("%w: it calls itself %q, its certificate names %q", ErrPeerIdentity, h.Name, peer.ID)
	}
	s.number, peer.Incarnation = h.Stripe, h.Incarnation
	l, err := a.acceptedLink(peer, h.Nonce)
	return l, peer, h, err
}

// maxLinks bounds the links that one peer has here at a time: it dials one, and
// those that an outage cut off are given up in time.
const maxLinks = 8

// acceptedLink returns the link that a stripe belongs to. A peer with another
// incarnation than its links has restarted: those links are ended.
func (a *Agent) acceptedLink(peer Peer, nonce wire.Nonce) (*Link, error) {
	var old, earlier []*Link
	var found *Link
	accepted := 0
	a.mu.Lock()
	for l := range a.mu.links {
		switch p := l.Peer(); {
		case p.ID != peer.ID:
		case p.Incarnation != "" && p.Incarnation != peer.Incarnation:
			old = append(old, l)
		case !l.dialled:
			accepted++
			if l.nonce == nonce {
				found = l
			} else {
				earlier = append(earlier, l)
			}
		}
	}
	full := found == nil && accepted >= maxLinks
	if found == nil && !full && !a.mu.closed {
		found = newLink(a, peer.ID, nonce, nil, Estimates{})
		found.mu.peer = peer
		a.mu.links[found] = struct{}{}
		a.metrics.links.Inc()
		defer found.pushMetadata()
		for _, l := range earlier {
			l.superseded()
		}
	}
	a.mu.Unlock()
	for _, l := range old {
		l.end(fmt.Errorf("peer %q: %w", peer.ID, ErrPeerRestarted), CodePeerRestarted)
	}
	if full {
		return nil, fmt.Errorf("peer %q has %d links here, at most %d: %w", peer.ID, accepted, maxLinks, ErrBusy)
	}
	if found == nil {
		return nil, fmt.Errorf("agent: %w", ErrClosed)
	}
	return found, nil
}
