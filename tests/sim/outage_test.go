package sim

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
)

// resumeLimit is how long after the end of an outage traffic may take to go on.
const resumeLimit = 2 * time.Second

// outage is an outage of host 0's device, and what connections saw of it. There are four: over one
// each host sends all the time, one is used after the outage only, and one is made then.
type outage struct {
	w          *world
	from, to   time.Duration // the device is away
	sends      watched       // host 0's, as its peer reads them
	receives   watched       // its peer's
	idle, made time.Duration // when bytes came back over a connection made before, and after
	down       []time.Duration
}

// watched is what a reader saw.
type watched struct {
	first, megabyte time.Duration // when these had come after the outage
	got             int           // since its end
	before, after   int           // bytes in the second before it, and in the second after resumed
	err             error
}

const (
	outagePort = 7
	// outageDelay is that of a frame: a flight is dozens of segments.
	outageDelay = 5 * time.Millisecond
	// resumed is how long after the end of an outage the rate is looked at.
	resumed = time.Second
)

// runOutage has host 0's device be away for d, a second after traffic began.
func runOutage(d time.Duration) (*outage, error) {
	before := runtime.NumGoroutine()
	host := HostPlan{Kind: Ours, Card: "cx6dx", Detection: -1, Device: dv.Config{NIC: dv.NIC{
		RxQueues: 1,
		TxQueues: 1,
		Rings:    dv.Rings{RxQueueSize: 512, TxQueueSize: 512},
	}, Tuning: dv.Tuning{TxBufferSize: 256 << 10}}}
	w := newWorld(Plan{Seed: 1, Net: NetPlan{MTU: 1500, Delay: outageDelay,
		Quantum: 10 * time.Microsecond}, Hosts: []HostPlan{host, host},
		Faults: []FaultPlan{{Kind: Removed, At: time.Second, For: d}}})
	if err := w.bringUp(); err != nil {
		return nil, err
	}
	o := &outage{w: w, from: w.began + time.Second, to: w.began + time.Second + d}
	ln, err := w.hosts[0].listen(netip.AddrPortFrom(address(0), outagePort))
	if err != nil {
		return nil, err
	}
	w.startFaults()
	w.spawn("listener", func(*task) error { return o.serve(ln) })
	var clients sync.WaitGroup
	for i, what := range []func(*task, net.Conn) error{o.download, o.upload, o.wait, o.late} {
		clients.Add(1)
		w.spawn(fmt.Sprint("client ", i), func(t *task) error {
			defer clients.Done()
			if i == 3 {
				t.sleep(o.to + time.Second - o.w.clock.now()) // the device must be back
			}
			c, err := t.dial(1, func() netip.AddrPort {
				return netip.AddrPortFrom(address(0), outagePort)
			})
			if err != nil {
				return err
			}
			defer c.Close()
			return what(t, c)
		})
	}
	go func() {
		clients.Wait()
		ln.Close()
	}()
	if err := w.until(w.idle, d+10*time.Minute); err != nil {
		return o, err
	}
	if err := w.until(w.gone, goneLimit); err != nil {
		return o, err
	}
	if err := w.takeDown(); err != nil {
		return o, err
	}
	return o, w.leftovers(before)
}

// serve has what the first byte of a connection asks for done at host 0.
func (o *outage) serve(ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return nil
		}
		o.w.spawn("server", func(t *task) error {
			defer c.Close()
			b := make([]byte, 1)
			if _, err := io.ReadFull(c, b); err != nil {
				return o.failed(err)
			}
			switch b[0] {
			case 'd':
				return o.pump(t, c, &o.sends)
			case 'u':
				return o.failed(o.read(c, &o.receives))
			}
			_, err := c.Write(b)
			if err == nil {
				_, err = io.Copy(c, c)
			}
			return o.failed(err)
		})
	}
}

// failed takes note that a call of host 0 failed.
func (o *outage) failed(err error) error {
	if errors.Is(err, syscall.ENETDOWN) {
		o.w.mu.Lock()
		defer o.w.mu.Unlock()
		o.down = append(o.down, o.w.clock.now()-o.from)
		return nil
	}
	return err
}

// pump sends all the time, until what has seen enough, or an error.
func (o *outage) pump(t *task, c net.Conn, what *watched) error {
	for b := make([]byte, 32<<10); ; t.sleep(5 * time.Millisecond) {
		_, err := c.Write(b)
		if o.enough(what) {
			return nil
		}
		if err != nil {
			return o.failed(err)
		}
	}
}

// enough reports whether a reader has seen all that it wants to.
func (o *outage) enough(what *watched) bool {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	return what.megabyte > 0 && o.w.clock.now() > o.to+resumed+time.Second
}

// read reads until a megabyte has come after the outage.
func (o *outage) read(c net.Conn, what *watched) error {
	for b := make([]byte, 64<<10); ; {
		n, err := c.Read(b)
		o.note(what, n)
		if o.enough(what) {
			return nil
		}
		if err != nil {
			what.err = err
			return err
		}
	}
}

// note takes note of n bytes that came.
func (o *outage) note(what *watched, n int) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	at := o.w.clock.now()
	now := at - o.to
	if at < o.from && at >= o.from-time.Second {
		what.before += n
	}
	if now >= resumed && now < resumed+time.Second {
		what.after += n
	}
	if now <= 0 || n == 0 {
		return
	}
	if what.got += n; what.first == 0 {
		what.first = now
	}
	if what.got > 1<<20 && what.megabyte == 0 {
		what.megabyte = now
	}
}

// download and upload are clients of host 1; when connections are cut off they are reset, or time
// out.
func (o *outage) download(_ *task, c net.Conn) error {
	if _, err := c.Write([]byte("d")); err != nil {
		return err
	}
	_ = o.read(c, &o.sends)
	return nil
}

func (o *outage) upload(t *task, c net.Conn) error {
	if _, err := c.Write([]byte("u")); err != nil {
		return err
	}
	_ = o.pump(t, c, &o.receives)
	return nil
}

// wait sends nothing from before the outage until after it.
func (o *outage) wait(t *task, c net.Conn) error {
	if err := ping(c); err != nil {
		return err
	}
	t.sleep(o.to + resumeLimit - o.w.clock.now())
	if ping(c) == nil {
		o.idle = o.w.clock.now() - o.to
	}
	return nil
}

// late is the client of a connection made after the outage.
func (o *outage) late(_ *task, c net.Conn) error {
	err := ping(c)
	o.made = o.w.clock.now() - o.to
	return err
}

// ping has a byte sent back.
func ping(c net.Conn) error {
	b := []byte("e")
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

// TestOutages: host 0's device is away, and nothing is in its place. No outage shorter than
// MaxOutage, 2 minutes, costs a connection, and what host 0 sends goes on within 2 s of its end,
// with half of the rate of before at least. A longer one ends all calls with ENETDOWN within 1 s of
// the limit, and the listener serves again when the device is back. What a peer sends goes on when
// its own retransmission timer, which has doubled all the time, expires; a megabyte takes it 2 s at
// most from then on.
func TestOutages(t *testing.T) {
	alone(t)
	for _, d := range []time.Duration{time.Second, 10 * time.Second, time.Minute,
		119 * time.Second, 121 * time.Second} {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			o, err := runOutage(d)
			if err != nil {
				t.Fatalf("%v: %+v", err, o)
			}
			t.Logf("sends again after %v, 1 MiB after %v; receives again after %v, 1 MiB after "+
				"%v; idle connection %v, new one %v; ENETDOWN after %v; sends %d bytes in the "+
				"second before, %d in the second %v after", o.sends.first, o.sends.megabyte,
				o.receives.first, o.receives.megabyte, o.idle, o.made, o.down, o.sends.before,
				o.sends.after, resumed)
			s := o.w.hosts[0].(*ourHost).stack.LinkStatus()
			if s.State != failover.Up || s.Losses != 1 || s.Returns != 1 {
				t.Errorf("%+v", s)
			}
			if o.made == 0 || o.made > resumeLimit {
				t.Errorf("a new connection was served after %v", o.made)
			}
			if d < defaultMaxOutage {
				o.survived(t)
			} else {
				o.cut(t)
			}
		})
		runtime.GC()
	}
}

// survived fails the test unless all connections have gone on.
func (o *outage) survived(t *testing.T) {
	if len(o.down) > 0 || o.sends.err != nil || o.receives.err != nil {
		t.Errorf("ENETDOWN after %v, %v, %v", o.down, o.sends.err, o.receives.err)
	}
	if first := o.sends.first; first == 0 || first > resumeLimit {
		t.Errorf("what it sends goes on after %v", first)
	}
	if o.sends.before == 0 || o.sends.after < o.sends.before/2 {
		t.Errorf("it sends %d bytes in the second before, %d in the second %v after",
			o.sends.before, o.sends.after, resumed)
	}
	if first := o.receives.first; first == 0 || first > o.to-o.from+resumeLimit {
		t.Errorf("what it receives goes on after %v", first)
	}
	if whole := o.receives.megabyte; whole == 0 || whole > o.receives.first+resumeLimit {
		t.Errorf("of what it receives 1 MiB has come after %v", whole)
	}
	if o.idle == 0 || o.idle > 2*resumeLimit {
		t.Errorf("an idle connection goes on after %v", o.idle)
	}
}

// cut fails the test unless all connections of before have ended in time.
func (o *outage) cut(t *testing.T) {
	if len(o.down) != 3 {
		t.Errorf("calls of three connections waited, %v failed", o.down)
	}
	for _, after := range o.down {
		if after < defaultMaxOutage || after > defaultMaxOutage+time.Second {
			t.Errorf("ENETDOWN %v after the device's loss, want %v to 1 s later", after,
				defaultMaxOutage)
		}
	}
	if o.idle != 0 {
		t.Error("an idle connection went on")
	}
}

// TestReaddressedLease: a question for a lease goes on under the MAC address that it began with,
// by which the server knows the host, although the netdev has another one by then.
func TestReaddressedLease(t *testing.T) {
	p := NewPlan(901306)
	if !p.leased() || !p.has(TakenBack) || !p.has(Readdressed) {
		t.Fatal("another world: choose a seed whose lease is taken back while the MAC is another")
	}
	if r := Run(p); r.Err != nil {
		t.Error(r.Err)
	}
}
