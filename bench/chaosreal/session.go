package chaosreal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/kvferry/kvferry/bench/refengine"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// session is a conversation, as its proxy knows it.
type session struct {
	tenant, id string

	mu     sync.Mutex
	tokens []int
	keys   [][]byte // of all blocks it ever had
	owner  int      // as far as known
	repin  uint64
	there  bool
	asked  int // the destination of a hand-over whose answer was lost; -1: none
	rng    *rand.Rand
}

func newSession(i int, s seedSession, seed uint64) *session {
	return &session{tenant: s.tenant, id: fmt.Sprintf("s%d", i), owner: s.home, asked: -1, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
}

func (s *session) ref() *pb.SessionRef { return &pb.SessionRef{Tenant: s.tenant, SessionId: s.id} }

// view is what a call needs of it.
func (s *session) view() (tokens []int, keys [][]byte, owner int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tokens), slices.Clone(s.keys), s.owner
}

// nextRepin is the proxy's next re-pin number.
func (s *session) nextRepin() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repin++
	return s.repin
}

// speak has a node's engine prefill the session with more blocks and publish it. What the engine has written counts even where the
// publishing was refused: its blocks are to be found.
func (s *session) speak(ctx context.Context, n *node, blocks int) error {
	s.mu.Lock()
	tokens := slices.Clone(s.tokens)
	for range blocks * blockTokens {
		tokens = append(tokens, s.rng.IntN(shape.Vocab))
	}
	tokens = append(tokens, 1) // a last one, whose block is not whole
	s.mu.Unlock()
	n.turn.Lock()
	res, err := n.engine.Generate(ctx, refengine.Request{Tenant: s.tenant, Session: s.id, Tokens: tokens, Commit: true, Publish: true, UseCache: true})
	n.turn.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	known := refengine.BlockKeys(hashSeed, blockTokens, tokens)
	for _, k := range known {
		if !slices.ContainsFunc(s.keys, func(old []byte) bool { return string(old) == string(k) }) {
			s.keys = append(s.keys, k)
		}
	}
	if err != nil {
		return err
	}
	s.tokens, s.there = tokens[:len(tokens)-1], true
	if res.DamagedPages > 0 {
		return &damagedError{fmt.Errorf("%d pages that the engine loaded are not what their keys say", res.DamagedPages)}
	}
	return nil
}

// damagedError is a wrong page.
type damagedError struct{ error }

func isDamage(err error) bool { _, ok := errors.AsType[*damagedError](err); return ok }

// front has a node's engine prefill beside a hybrid migration into it.
func (s *session) front(ctx context.Context, n *node, migration string) error {
	tokens, _, _ := s.view()
	n.turn.Lock()
	defer n.turn.Unlock()
	res, err := n.engine.Generate(ctx, refengine.Request{Tenant: s.tenant, Session: s.id, Tokens: append(tokens, 1), Commit: true, UseCache: true, Migration: migration})
	if err == nil && res.DamagedPages > 0 {
		return &damagedError{fmt.Errorf("%d pages that a front loaded are not what their keys say", res.DamagedPages)}
	}
	return err
}

// ended notes what a migration has made of the owner.
func (s *session) ended(out outcome, to int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch out.report.GetOwnership() {
	case pb.Ownership_OWNERSHIP_MOVED:
		s.owner, s.asked = to, -1
	case pb.Ownership_OWNERSHIP_UNKNOWN:
		s.asked = to
	case pb.Ownership_OWNERSHIP_UNMOVED, pb.Ownership_OWNERSHIP_UNSPECIFIED:
		if out.again > 0 { // the daemon that went may have asked for it
			s.asked = to
		}
	}
}

// hashSeed is the reference engine's default.
const hashSeed = "kvferry-refengine"
