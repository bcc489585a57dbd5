package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
)

const (
	// partHeader holds what each datagram of a question in parts begins with: the question's
	// number, and its own in it.
	partHeader = 12
	// maxParts gives the most bytes that are read or sent by one call.
	maxParts = 65507
	// maxQuestionParts gives the most bytes of a question in parts: the buffers of netstack's
	// sockets have room for them.
	maxQuestionParts = 16000
)

// segmentedConn describes a socket that sends many datagrams by one call and reads many by one.
type segmentedConn interface {
	SetReceiveSegments(on bool) error
	ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error)
	WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error)
}

// inParts reports whether the questions of the work consist of many datagrams. How much comes back
// means nothing else to work with datagrams.
func (p *WorkPlan) inParts() bool { return p.Kind == Datagrams && p.Back%4 == 3 }

// partSize gives the length of each datagram of a question but the last.
func (p *WorkPlan) partSize() int { return partHeader + 1 + p.Back%1000 }

// segments sends datagrams for questions of many datagrams: both ends send them by one call
// (UDP_SEGMENT) and read them so (UDP_GRO), if their sockets can.
func (j *job) segments() {
	serve := func(t *task, c net.PacketConn) error {
		buf := make([]byte, maxParts)
		for {
			t.calls("read datagrams")
			n, size, from, err := readParts(c, buf)
			if err != nil {
				return nil
			}
			t.calls("send datagrams back")
			sendParts(c, buf[:n], size, from)
		}
	}
	j.exchange(serve, func(t *task, client net.PacketConn) error {
		answers := make(chan []byte, 2*questionTries)
		j.w.spawn(j.name+", reader", func(t *task) error {
			return collectParts(t, client, answers)
		})
		t.sleep(j.plan.Start)
		for id := range j.plan.Count {
			if err := j.questionInParts(t, client, id, answers); err != nil {
				return err
			}
		}
		return nil
	})
}

// Control messages of a size: its message's length, level and type, and the size.
const (
	levelUDP    = 17
	typeSegment = 103
	typeJoined  = 104
	sizeAt      = 16
)

// readParts reads one datagram or several, and returns the size of each but the last.
func readParts(c net.PacketConn, b []byte) (n, size int, from net.Addr, err error) {
	s, ok := c.(segmentedConn)
	if !ok {
		n, from, err = c.ReadFrom(b)
		return n, n, from, err
	}
	if err := s.SetReceiveSegments(true); err != nil {
		return 0, 0, nil, err
	}
	oob := make([]byte, 64)
	n, oobn, _, from, err := s.ReadMsgUDP(b, oob)
	if size = n; oobn >= sizeAt+4 && oob[8] == levelUDP && oob[12] == typeJoined {
		size = int(binary.NativeEndian.Uint32(oob[sizeAt:]))
	}
	return n, size, from, err
}

// sendParts sends b as datagrams of a size, by one call if the socket can. They may as well be
// lost.
func sendParts(c net.PacketConn, b []byte, size int, to net.Addr) {
	s, ok := c.(segmentedConn)
	if ok && len(b) > size {
		oob := make([]byte, sizeAt+8)
		binary.NativeEndian.PutUint64(oob, sizeAt+2)
		oob[8], oob[12] = levelUDP, typeSegment
		binary.NativeEndian.PutUint16(oob[sizeAt:], uint16(size))
		_, _, _ = s.WriteMsgUDP(b, oob, to.(*net.UDPAddr))
		return
	}
	for part := range slices.Chunk(b, max(size, 1)) {
		_, _ = c.WriteTo(part, to)
	}
}

// collectParts does what collect does, for answers of which several may come at once.
func collectParts(t *task, c net.PacketConn, answers chan<- []byte) error {
	buf := make([]byte, maxParts)
	for {
		t.calls("read answers")
		n, size, _, err := readParts(c, buf)
		if err != nil {
			return nil
		}
		for part := range slices.Chunk(buf[:n], max(size, 1)) {
			select {
			case answers <- bytes.Clone(part):
			default:
			}
		}
	}
}

// questionInParts asks until all parts of question id have been answered, at most 64 of them: again
// for those that have not, as a small buffer has room for the first only.
func (j *job) questionInParts(t *task, c net.PacketConn, id int, answers <-chan []byte) error {
	size := j.plan.partSize()
	parts := 1 + j.plan.Bytes%min(64, maxQuestionParts/size)
	q := make([]byte, parts*size-j.plan.Bytes%(size-partHeader))
	pattern{j.w.table, uint64(id) * 7919}.fill(q, 0)
	left := make(map[int]bool, parts)
	for i := range parts {
		binary.BigEndian.PutUint64(q[i*size:], uint64(id))
		binary.BigEndian.PutUint32(q[i*size+8:], uint32(i))
		left[i] = true
	}
	for range questionTries {
		t.calls("ask in parts")
		sendParts(c, partsLeft(q, size, left), size, net.UDPAddrFromAddrPort(j.reach()))
		again := make(chan struct{})
		timer := j.w.clock.AfterFunc(questionWait, func() { close(again) })
		for asked := true; asked; {
			select {
			case part := <-answers:
				if err := takePart(part, q, size, uint64(id), left); err != nil {
					return err
				}
				if len(left) == 0 {
					timer.Stop()
					return nil
				}
			case <-again:
				asked = false
			}
		}
	}
	return fmt.Errorf("asked %d times: %d of %d parts without an answer", questionTries, len(left),
		parts)
}

// partsLeft returns the parts of q that are in left.
func partsLeft(q []byte, size int, left map[int]bool) (b []byte) {
	i := 0
	for part := range slices.Chunk(q, size) {
		if left[i] {
			b = append(b, part...)
		}
		i++
	}
	return b
}

// takePart takes part off left if it is one of question id, which is q. Those of earlier questions
// may still come.
func takePart(part, q []byte, size int, id uint64, left map[int]bool) error {
	wrong := fmt.Errorf("a part of %d bytes is not what was asked", len(part))
	if len(part) < partHeader {
		return wrong
	}
	of, i := binary.BigEndian.Uint64(part), int(binary.BigEndian.Uint32(part[8:]))
	from := i * size
	switch {
	case of < id:
	case of > id || from >= len(q) || !bytes.Equal(part, q[from:min(from+size, len(q))]):
		return wrong
	default:
		delete(left, i)
	}
	return nil
}
