package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Questions over UDP are asked again after questionWait, questionTries times.
const (
	questionWait  = 400 * time.Millisecond
	questionTries = 400
	maxQuestion   = 4000
)

// datagrams runs a server that sends questions back, and a client that asks again until it has an
// answer.
func (j *job) datagrams() {
	j.exchange(echo, func(t *task, client net.PacketConn) error {
		answers := make(chan []byte, 2*questionTries)
		j.w.spawn(j.name+", reader", func(t *task) error { return collect(t, client, answers) })
		t.sleep(j.plan.Start)
		return j.questions(t, client, answers)
	})
}

// echo sends each datagram back until c is closed.
func echo(t *task, c net.PacketConn) error {
	buf := make([]byte, maxQuestion+1)
	for {
		t.calls("read datagram")
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return nil
		}
		t.calls("send datagram back")
		_, _ = c.WriteTo(buf[:n], from) // it may as well be lost
	}
}

// collect reads answers until c is closed.
func collect(t *task, c net.PacketConn, answers chan<- []byte) error {
	buf := make([]byte, maxQuestion+1)
	for {
		t.calls("read answer")
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return nil
		}
		select {
		case answers <- append([]byte(nil), buf[:n]...):
		default:
		}
	}
}

// questions asks all questions of the work.
func (j *job) questions(t *task, c net.PacketConn, answers <-chan []byte) error {
	for id := range j.plan.Count {
		q := make([]byte, 8+j.plan.Bytes%(maxQuestion-8))
		pattern{j.w.table, uint64(id) * 7919}.fill(q[8:], 0)
		binary.BigEndian.PutUint64(q, uint64(id))
		if err := j.question(t, c, q, answers); err != nil {
			return err
		}
	}
	return nil
}

// shorter says how many bytes less a question has once it was too long.
const shorter = 8

// askWhole sends a question, with "don't fragment" if the work has that: one that the socket says
// is too long is made shorter until it is not. It returns what was sent.
func (j *job) askWhole(t *task, c net.PacketConn, q []byte) []byte {
	to := net.UDPAddrFromAddrPort(j.reach())
	_, err := c.WriteTo(q, to)
	for j.plan.DF && errors.Is(err, syscall.EMSGSIZE) && len(q) > 2*shorter {
		q = q[:len(q)-shorter]
		_, err = c.WriteTo(q, to)
	}
	if err != nil {
		j.w.logf("%s: ask: %v", t.name, err)
	}
	return q
}

// fitsPath says what is wrong with the length to which a question was cut: the longest that passes
// the router in one piece is wanted.
func (j *job) fitsPath(asked, passed int) error {
	room := j.w.plan.Net.PathMTU - header.IPv4MinimumSize - header.UDPMinimumSize
	if j.plan.IPv6 {
		room -= header.IPv6MinimumSize - header.IPv4MinimumSize
	}
	if passed > room || passed < asked && passed+shorter <= room {
		return fmt.Errorf("of %d bytes %d were sent with \"don't fragment\" where %d have room",
			asked, passed, room)
	}
	return nil
}

// question asks until there is an answer.
func (j *job) question(t *task, c net.PacketConn, q []byte, answers <-chan []byte) error {
	if j.plan.DF {
		if err := c.(interface{ SetDontFragment(bool) error }).SetDontFragment(true); err != nil {
			return err
		}
	}
	whole := len(q)
	for range questionTries {
		t.calls("ask")
		q = j.askWhole(t, c, q)
		again := make(chan struct{})
		timer := j.w.clock.AfterFunc(questionWait, func() { close(again) })
		for asked := true; asked; {
			select {
			case a := <-answers:
				if string(a) == string(q) {
					timer.Stop()
					if j.plan.DF {
						return j.fitsPath(whole, len(q))
					}
					return nil
				}
				if len(a) < 8 || binary.BigEndian.Uint64(a) >= binary.BigEndian.Uint64(q) &&
					!j.plan.DF { // one that was longer may have passed
					return fmt.Errorf("the answer of %d bytes is not what was asked", len(a))
				}
			case <-again:
				asked = false
			}
		}
	}
	return fmt.Errorf("asked %d times without an answer", questionTries)
}
