package failover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// fakeDevice is a device or port that does what the test says.
type fakeDevice struct {
	world   *world
	name    string
	done    chan struct{}
	changed chan struct{}
	err     error
	up      bool
	muted   bool
	closed  int
}

func (d *fakeDevice) LinkUp() bool                 { return d.up }
func (d *fakeDevice) LinkChanged() <-chan struct{} { return d.changed }
func (d *fakeDevice) Done() <-chan struct{}        { return d.done }
func (d *fakeDevice) Err() error                   { return d.err }

func (d *fakeDevice) Close() error {
	d.world.note("close " + d.name)
	d.closed++
	return nil
}

func (d *fakeDevice) Mute() error {
	d.world.note("mute")
	d.muted = true
	return nil
}

func (d *fakeDevice) Unmute() error {
	d.world.note("unmute")
	d.muted = false
	return nil
}

// fail ends the device.
func (d *fakeDevice) fail(err error) {
	d.err = err
	close(d.done)
}

// world is what a Link is told and does.
type world struct {
	t       *testing.T
	link    *Link
	signals chan Signal

	mu      sync.Mutex // guards what follows
	events  []string   // in order
	devices []*fakeDevice
	ports   []*fakeDevice
	refuse  error         // of Open
	noPort  error         // of OpenPort
	unfit   error         // of Switch to rings
	gate    chan struct{} // Open waits for it to be closed; nil: it does not
	rtnl    chan struct{} // Regroup likewise
	opens   int

	switched time.Time     // when Switch was called last
	draining time.Duration // what Switch takes
	expired  int
	rerouted int // how often Rerouted was told
}

func (w *world) note(event string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event)
}

// take returns what has happened since the last call.
func (w *world) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}

// expirations is how often Expired was told.
func (w *world) expirations() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.expired
}

// attempts is how often Open was called.
func (w *world) attempts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opens
}

// set changes what the world does.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// Switch implements Endpoint.
func (w *world) Switch(to rdma.Backend) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if to.Kind() == rdma.BackendRings && w.unfit != nil {
		return w.unfit
	}
	w.events = append(w.events, "switch to "+to.Kind().String())
	w.switched = time.Now()
	time.Sleep(w.draining)
	return nil
}

// SendsSince implements Endpoint.
func (w *world) SendsSince() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.switched
}

// Regroup implements Endpoint.
func (w *world) Regroup() error {
	w.mu.Lock()
	rtnl := w.rtnl
	w.mu.Unlock()
	if rtnl != nil {
		<-rtnl
	}
	return nil
}

func (w *world) device() *fakeDevice {
	d := &fakeDevice{world: w, name: fmt.Sprintf("mlx5_%d", len(w.devices)), up: true,
		done: make(chan struct{}), changed: make(chan struct{}, 1)}
	w.devices = append(w.devices, d)
	return d
}

func (w *world) opened(d *fakeDevice) Opened {
	return Opened{Device: d, Backend: rdma.Rings(nil), Name: d.name, Ifindex: 10 + len(w.devices)}
}

func (w *world) open(context.Context) (Opened, error) {
	if w.gate != nil {
		<-w.gate
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opens++
	if w.refuse != nil {
		return Opened{}, w.refuse
	}
	w.events = append(w.events, "open")
	return w.opened(w.device()), nil
}

func (w *world) openPort() (OpenedPort, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noPort != nil {
		return OpenedPort{}, w.noPort
	}
	p := &fakeDevice{world: w, name: "eth0", up: true, muted: true, done: make(chan struct{}),
		changed: make(chan struct{}, 1)}
	w.ports = append(w.ports, p)
	return OpenedPort{Port: p, Backend: rdma.Sockets(nil), Name: p.name}, nil
}

func (w *world) changedTo(c Change) {
	if c.Expired {
		w.set(func() { w.expired++ })
	}
	if c.Rerouted {
		w.set(func() { w.rerouted++ })
	}
}

var errGone = errors.New("no such device")

// start is a link with a device that has worked for a while, and with a port if withPort is set.
func start(t *testing.T, cfg Config, withPort bool) *world {
	w := &world{t: t, signals: make(chan Signal)}
	cfg.Endpoint, cfg.Open, cfg.Signals, cfg.Changed = w, w.open, w.signals, w.changedTo
	if withPort {
		cfg.OpenPort = w.openPort
	}
	w.link = Start(w.opened(w.device()), cfg)
	time.Sleep(steady)
	return w
}
