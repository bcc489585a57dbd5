package sim

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"
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

// question asks until there is an answer.
func (j *job) question(t *task, c net.PacketConn, q []byte, answers <-chan []byte) error {
	for range questionTries {
		t.calls("ask")
		to := net.UDPAddrFromAddrPort(j.reach())
		if _, err := c.WriteTo(q, to); err != nil {
			j.w.logf("%s: ask: %v", t.name, err)
		}
		again := make(chan struct{})
		timer := j.w.clock.AfterFunc(questionWait, func() { close(again) })
		for asked := true; asked; {
			select {
			case a := <-answers:
				if string(a) == string(q) {
					timer.Stop()
					return nil
				}
				if len(a) < 8 || binary.BigEndian.Uint64(a) >= binary.BigEndian.Uint64(q) {
					return fmt.Errorf("the answer of %d bytes is not what was asked", len(a))
				}
			case <-again:
				asked = false
			}
		}
	}
	return fmt.Errorf("asked %d times without an answer", questionTries)
}
