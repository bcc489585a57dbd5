package tcpfix

import (
	"encoding/binary"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// eifel tells a connection whether anything of a flight was lost of which netstack has sent some
// again (RFC 3522). The peer echoes the timestamp of what filled a gap (RFC 7323 section 4.3): one
// from before says that what was sent first has come after all, late.
//
// Behaviour: netstack finds out that a recovery was spurious, counts it, and keeps the window and
// the threshold that it has lowered (transport/tcp/snd.go detectSpuriousRecovery). A tail loss
// probe lowers them where the original comes late. What netstack sees of echoes is not right where
// goBack or hideEcho has changed them.
//
// Fix: the whole flight is looked at, as it may have lost some and had others come late; the owner
// of the connection's packets has what was lowered for nothing undone.
//
// Upstream: docs/upstream/44-spurious-undo.md. No longer needed when TestSpuriousUndo of
// tests/conformance/upstream fails.
type eifel struct {
	owner connection
	end   uint32 // of the flight when something of it was sent again first
	stamp uint32 // of what that was sent with
	on    bool
	lost  bool // some of it
}

// begin notes that something of a flight, which goes up to end, is sent again.
func (e *eifel) begin(pkt *gstack.PacketBuffer, s *hdr.Segment, end uint32) {
	stamp := s.Options().Timestamp
	if stamp == nil {
		return
	}
	if !e.on {
		*e = eifel{end: end, stamp: binary.BigEndian.Uint32(stamp[2:]), on: true}
	}
	if owner, ok := pkt.Owner.(connection); ok {
		e.owner = owner
	}
}

// judge looks at an acknowledgement of data, up to una by now.
func (e *eifel) judge(s *hdr.Segment, una uint32) {
	if !e.on {
		return
	}
	stamp := s.Options().Timestamp
	e.lost = e.lost || stamp == nil || !hdr.Before(binary.BigEndian.Uint32(stamp[6:]), e.stamp)
	if hdr.Before(una, e.end) {
		return
	}
	switch e.on = false; {
	case e.owner == nil:
	case e.lost:
		e.owner.NoteLost()
	default:
		e.owner.NoteNeedless()
	}
}
