package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// burst makes all connections of the work at once. The server accepts them slowly.
func (j *job) burst() {
	j.serving(func(t *task) error {
		t.sleep(j.plan.Start)
		ended := make(chan error, j.plan.Count)
		for n := range j.plan.Count {
			j.w.spawn(fmt.Sprintf("%s, client %d", j.name, n), func(t *task) error {
				ended <- j.persist(t)
				return nil
			})
		}
		var errs []error
		t.calls("wait for the clients")
		for range j.plan.Count {
			errs = append(errs, <-ended)
		}
		return errors.Join(append(errs, j.afterCutOff(t))...)
	}, func(ln net.Listener) { j.acceptAll(ln, j.plan.Pause, j.serve) })
}

// overflows reports whether the server's backlog is full with a burst: netstack answers the SYN
// that would take the last place with a cookie. With SYN cookies, which are in use then, a client
// whose ACK found the backlog full is reset when its second segment of data comes: that is not next
// to the SYN that the cookie is of (Linux does the same).
func (j *job) overflows() bool {
	backlog := j.w.plan.Hosts[j.plan.Server].Memory.Backlog
	return j.plan.Kind == Burst && backlog > 0 && backlog <= j.plan.Count
}

// burstTries is how often a client of a burst may be reset.
const burstTries = 60

// persist is a client of a burst: where the server has no room it comes again, until it is served.
func (j *job) persist(t *task) error {
	for range burstTries {
		c, err := t.dial(j.plan.Client, j.reach)
		if err != nil {
			return err
		}
		s := j.dialled(t, c)
		err = t.ask(c, s, j.plan.Bytes)
		t.calls("close")
		c.Close()
		if err != nil || s.back.eof || !j.overflows() {
			return err
		}
		j.w.logf("%s: write: %v, read: %v", t.name, s.there.sendErr, s.back.recvErr)
		t.sleep(dialPause)
	}
	return fmt.Errorf("%d connections were reset", burstTries)
}

// floodAgain is after how long datagrams that the server has not got are sent again.
const floodAgain = 200 * time.Millisecond

// flood sends datagrams, all at once, until the server has got each. It takes a pause before it
// reads one.
func (j *job) flood() {
	got := make([]bool, j.plan.Count) // guarded by j.mu
	j.exchange(func(t *task, server net.PacketConn) error {
		return j.take(t, server, got)
	}, func(t *task, client net.PacketConn) error {
		t.sleep(j.plan.Start)
		for range questionTries {
			left := 0
			for id := range got {
				j.mu.Lock()
				there := got[id]
				j.mu.Unlock()
				if there {
					continue
				}
				left++
				t.calls("send datagram")
				if _, err := client.WriteTo(j.datagram(id), net.UDPAddrFromAddrPort(
					j.reach())); err != nil {
					j.w.logf("%s: %v", t.name, err)
				}
			}
			if left == 0 {
				return nil
			}
			t.sleep(floodAgain)
		}
		return fmt.Errorf("sent %d times, and not all have come", questionTries)
	})
}

// datagram is one of a flood.
func (j *job) datagram(id int) []byte {
	b := make([]byte, 8+j.plan.Bytes)
	binary.BigEndian.PutUint64(b, uint64(id))
	j.request().fill(b[8:], id)
	return b
}

// take reads datagrams of a flood until c is closed.
func (j *job) take(t *task, c net.PacketConn, got []bool) error {
	buf := make([]byte, maxQuestion+1)
	for {
		t.sleep(j.plan.Pause)
		t.calls("read datagram")
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return nil
		}
		if n != 8+j.plan.Bytes {
			return fmt.Errorf("a datagram of %d bytes came", n)
		}
		id := binary.BigEndian.Uint64(buf)
		if id >= uint64(len(got)) || j.request().wrong(buf[8:n], int(id)) >= 0 {
			return fmt.Errorf("datagram %d has other bytes", id)
		}
		j.mu.Lock()
		got[id] = true
		j.mu.Unlock()
	}
}
