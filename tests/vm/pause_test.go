//go:build linux

package vm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// pauseTime is longer than the kernel's watchdog of send queues (15 s) and all of ours.
const pauseTime = time.Minute

// connections wait for an answer of answerSize bytes when the pause begins.
const connections, answerSize = 16, 20000

// netdevRing is how many frames the netdev's receive queue takes before it needs new buffers.
const netdevRing = 1024

// testPause has the other end of the wire pause the port for a minute, under load. All connections
// survive, and reception goes on: the netdev's striding receive queues get more frames than they
// have room for, so that the driver must give them new buffers meanwhile.
func testPause(t *testing.T, w *world) {
	w.run(t, "ethtool", "--set-priv-flags", "eth0", "rx_striding_rq", "on")
	s := w.serve(t, "http", "--debug-endpoints")
	conns := make([]*waiting, connections)
	for i := range conns {
		conns[i] = w.connect(t)
		if err := conns[i].roundTrip(patience); err != nil {
			t.Fatal(err)
		}
	}
	answered, stop := w.browsing(t)
	began := time.Now()
	pause := w.nic.Inject(simnic.QueueFault{Kind: simnic.FaultPause, Delay: pauseTime})
	defer pause.Remove()
	for _, c := range conns {
		if err := c.ask(); err != nil {
			t.Fatal(err)
		}
	}
	w.netdevReceives(t, 4*netdevRing)
	if took := time.Since(began); took > pauseTime*9/10 {
		t.Errorf("the netdev needed %v, the time of the pause, to receive", took)
	}
	still := w.nic.Counters().Wire.TxPackets
	time.Sleep(time.Until(began.Add(pauseTime * 9 / 10))) // the pause is what is tested
	if n := w.nic.Counters().Wire.TxPackets; n != still {
		t.Errorf("%d packets left the port during the pause", n-still)
	}
	for i, c := range conns {
		if err := c.answer(pauseTime + patience); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	answered()
	stop()
	testNetdevPing(t, w)
	s.stop(t)
}

// browsing has clients fetch from the slice, each over one connection, again and again until stop
// is called. answered waits until more has been fetched.
func (w *world) browsing(t *testing.T) (answered, stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	var clients sync.WaitGroup
	var fetched atomic.Int64
	for range 4 {
		clients.Go(func() {
			err := w.client.DownloadRepeatedly(ctx, url(slice4, 80), answerSize,
				func(time.Duration) { fetched.Add(1) })
			if ctx.Err() == nil {
				t.Errorf("a client: %v", err)
			}
		})
	}
	stop = func() { cancel(); clients.Wait() }
	t.Cleanup(stop)
	answered = func() {
		t.Helper()
		before := fetched.Load()
		eventually(t, func() string { return "clients being answered" },
			func() bool { return fetched.Load() > before+16 })
	}
	answered()
	return answered, stop
}

// netdevReceives sends frames to the netdev until it has received n more.
func (w *world) netdevReceives(t *testing.T, n uint64) {
	t.Helper()
	mac := w.netdevMAC(t)
	before := w.nic.Counters().Netdev.RxPackets
	eventually(t, func() string {
		return fmt.Sprintf("the netdev receiving %d frames: %d", n,
			w.nic.Counters().Netdev.RxPackets-before)
	}, func() bool {
		w.frames(t, mac, 100)
		return w.nic.Counters().Netdev.RxPackets-before >= n
	})
}

// waiting is a connection to the slice's web server that is kept open.
type waiting struct {
	net.Conn
	r    *bufio.Reader
	want []byte
}

// connect opens a connection that the test closes at its end.
func (w *world) connect(t *testing.T) *waiting {
	t.Helper()
	c, err := w.outside.DialContext(w.ctx, "tcp", slice4.Addr().String()+":80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	want := make([]byte, answerSize)
	httpd.FillPattern(want, 0)
	return &waiting{c, bufio.NewReader(c), want}
}

func (c *waiting) roundTrip(limit time.Duration) error {
	if err := c.ask(); err != nil {
		return err
	}
	return c.answer(limit)
}

func (c *waiting) ask() error {
	_, err := fmt.Fprintf(c, "GET /-/bytes/%d HTTP/1.1\r\nHost: slice\r\n\r\n", answerSize)
	return err
}

// answer reads the answer to a request and checks each byte.
func (c *waiting) answer(limit time.Duration) error {
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Equal(b, c.want) {
		err = fmt.Errorf("status %s and %d other bytes", resp.Status, len(b))
	}
	return err
}
