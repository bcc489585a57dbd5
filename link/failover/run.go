package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// run owns the state.
func (l *Link) run() {
	defer close(l.ended)
	for {
		select {
		case <-l.done:
			l.end()
			return
		case <-l.deviceDone():
			l.lose(l.device.Err(), DeviceFailed)
		case <-l.portDone():
			l.losePort(l.port.Err())
		case <-l.linkChanges():
			l.tell()
		case <-l.deviceMTU():
			l.tellMTU()
		case <-l.portMTU():
			l.tellMTU()
		case s, ok := <-l.signals:
			if !ok {
				l.signals = nil
				continue
			}
			l.hear(s)
		case <-l.recover:
			l.count(&l.status.Recovers)
			l.hold(false)
			l.soon()
		case <-l.retry.C:
			l.probe()
		case <-l.reroute.C:
			l.tellRerouted()
		case a := <-l.opened:
			l.take(a)
		case <-l.limit.C:
			l.expire()
		}
	}
}

func (l *Link) deviceDone() <-chan struct{} {
	if l.device == nil {
		return nil
	}
	return l.device.Done()
}

func (l *Link) portDone() <-chan struct{} {
	if l.port == nil {
		return nil
	}
	return l.port.Done()
}

// linkChanges is LinkChanged of what is at work.
func (l *Link) linkChanges() <-chan struct{} {
	if d := l.atWork(); d != nil {
		return d.LinkChanged()
	}
	return nil
}

// tell puts a token into LinkChanged.
func (l *Link) tell() {
	l.count(&l.status.LinkChanges)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// deviceMTU has a token when the device's MTU has changed.
func (l *Link) deviceMTU() <-chan struct{} {
	if l.device == nil {
		return nil
	}
	return mtuChanges(l.device.Device)
}

// portMTU has a token when the packet port's MTU has changed.
func (l *Link) portMTU() <-chan struct{} {
	if l.port == nil {
		return nil
	}
	return mtuChanges(l.port.Port)
}

// mtuChanges returns what d tells changes of its MTU by; nil: it never changes.
func mtuChanges(d Device) <-chan struct{} {
	if t, ok := d.(interface{ MTUChanged() <-chan struct{} }); ok {
		return t.MTUChanged()
	}
	return nil
}

// tellMTU puts a token into MTUChanged.
func (l *Link) tellMTU() {
	select {
	case l.mtu <- struct{}{}:
	default:
	}
}

// hear acts on a signal of the kernel's.
func (l *Link) hear(s Signal) {
	if s.Ifindex != 0 && l.device == nil {
		l.expectReroute()
	}
	switch {
	case s.Moved:
		l.noteMove(s.Ifindex)
	case !s.Gone:
		l.soon()
	case l.device == nil:
	case s.Name != "" && s.Name == l.device.Name:
		l.lose(fmt.Errorf("the kernel removes RDMA device %s", s.Name), DeviceRemoved)
	case s.Ifindex != 0 && s.Ifindex == l.device.Ifindex:
		l.lose(fmt.Errorf("the kernel removes the netdev of %s", l.device.Name), DeviceRemoved)
	}
}

// noteMove says that the device's netdev has left for another network namespace: the rings are not
// the netdev's, and go on. What is its own does not: packet sockets, which tell by themselves.
func (l *Link) noteMove(ifindex int) {
	if l.device == nil || ifindex == 0 || ifindex != l.device.Ifindex {
		return
	}
	l.count(&l.status.Moves)
	l.log.Warn("the netdev has moved to another network namespace, and the rings go on; an "+
		"e-switch in front of the port (SR-IOV) no longer passes our MAC and groups "+
		"unless they are added there: bridge fdb add MAC dev NETDEV self", "device", l.device.Name)
}

// expectReroute sets the timer that tells Rerouted: a device leaves and comes in steps, each with a
// signal.
func (l *Link) expectReroute() {
	if l.moving {
		return
	}
	l.moving = true
	l.reroute.Reset(max(signalPause, reroutePause-l.cfg.Clock.Since(l.told)))
}

// tellRerouted tells Rerouted if the packet port carries frames.
func (l *Link) tellRerouted() {
	l.moving = false
	if l.device != nil || l.status.Backend != rdma.BackendPacket {
		return
	}
	l.told = l.cfg.Clock.Now()
	l.cfg.Changed(Change{State: l.status.State, Backend: l.status.Backend, LinkUp: l.LinkUp(),
		Cause: l.status.Reason, Away: l.cfg.Clock.Since(l.since), Rerouted: true})
}

// soon looks for what is missing, a moment after the first of several signals: a device comes in
// steps, each with a signal.
func (l *Link) soon() {
	switch {
	case !l.missing():
	case l.opening:
		l.again = true
	case !l.hurried:
		l.hurried = true
		l.retry.Reset(signalPause)
	}
}

// lose puts the packet port, or nothing, in the device's place, and has the device closed. what is
// DeviceFailed or DeviceRemoved.
func (l *Link) lose(cause error, what Cause) {
	old, counter := l.device, &l.status.Failed
	if what == DeviceRemoved {
		counter = &l.status.Removed
	}
	l.cause = what
	l.mu.Lock()
	l.device = nil
	l.status.Losses++
	*counter++
	l.mu.Unlock()
	if l.cfg.Grace > 0 && l.status.Returns > 0 && l.cfg.Clock.Since(l.since) < l.cfg.Grace {
		l.hold(true)
		l.count(&l.status.Holds)
		l.log.Error("the device failed again within the grace period, and is left alone",
			"device", old.Name, "grace", l.cfg.Grace)
	}
	if l.cfg.Clock.Since(l.since) >= steady {
		l.pause = firstPause
	} else {
		l.pause = min(2*l.pause, longestPause)
	}
	l.since = l.cfg.Clock.Now()
	l.set(Lost, l.status.Backend, cause)
	l.fallBack(cause)
	l.closing = make(chan struct{})
	go func(closing chan struct{}) {
		defer close(closing)
		if err := old.Close(); err != nil {
			l.log.Debug("objects of the lost device could not be destroyed", "device", old.Name,
				"error", err)
		}
	}(l.closing)
	l.retry.Reset(l.pause)
	l.regroup()
}

// regroup has the backend pass our groups. Frames pass already: the kernel may keep it waiting for
// as long as it takes to remove a netdev.
func (l *Link) regroup() {
	if err := l.cfg.Endpoint.Regroup(); err != nil {
		l.log.Warn("multicast may not come", "error", err)
	}
}

// missing says whether there is something to look for.
func (l *Link) missing() bool {
	return l.device == nil && !l.status.Held || l.port == nil && l.cfg.OpenPort != nil
}

// fallBack has the endpoint work on the packet port, or on nothing if there is none.
func (l *Link) fallBack(cause error) {
	to := rdma.None()
	if l.port != nil {
		err := l.port.Unmute()
		if err == nil {
			if err = l.cfg.Endpoint.Switch(l.port.Backend); err == nil {
				to = l.port.Backend
			}
		}
		if err != nil {
			err = errors.Join(err, l.port.Mute())
			l.log.Warn("the packet port does not take over", "netdev", l.port.Name, "error", err)
		}
	}
	if to.Kind() == rdma.BackendNone {
		l.switchToNone()
	}
	sends, receives := l.cfg.Endpoint.SendsSince().Sub(l.since), l.cfg.Clock.Since(l.since)
	if to.Kind() == rdma.BackendPacket {
		l.mu.Lock()
		l.status.FallbackTook, l.status.ReceiveTook = sends, receives
		l.mu.Unlock()
	}
	l.log.Warn("the device is away", "backend", to.Kind().String(), "sends_after", sends,
		"receives_after", receives, "cause", cause)
	l.set(Fallback, to.Kind(), cause)
}

// switchToNone cannot fail but for an endpoint that is closed, and then nothing matters.
func (l *Link) switchToNone() {
	if err := l.cfg.Endpoint.Switch(rdma.None()); err != nil {
		l.log.Debug("the endpoint does not change its backend", "error", err)
	}
	if l.cfg.MaxOutage > 0 && !l.status.Expired {
		l.limit.Reset(l.cfg.MaxOutage)
	}
}

// losePort goes on without the packet port, whose netdev is gone.
func (l *Link) losePort(cause error) {
	old := l.port
	l.mu.Lock()
	l.port = nil
	l.status.PortLosses++
	l.mu.Unlock()
	if l.device == nil && l.status.Backend == rdma.BackendPacket {
		l.cause = PortLost
		l.switchToNone()
		l.log.Warn("the packet port is gone, too", "netdev", old.Name, "cause", cause)
		l.set(l.status.State, rdma.BackendNone, cause)
	}
	if err := old.Close(); err != nil {
		l.log.Debug("close the packet port", "netdev", old.Name, "error", err)
	}
	if l.cfg.Joined && l.device != nil {
		l.lose(cause, DeviceRemoved)
	}
}

// probe tries to open what is missing, beside run.
func (l *Link) probe() {
	l.retry.Stop()
	l.hurried = false
	if l.opening {
		l.again = true
		return
	}
	if !l.missing() {
		return
	}
	l.opening, l.again = true, false
	open, openPort := l.cfg.Open, l.cfg.OpenPort
	if l.port != nil {
		openPort = nil
	}
	if l.device != nil || l.status.Held {
		open = nil
	} else {
		l.mu.Lock()
		l.status.State = Probing
		l.mu.Unlock()
	}
	go l.try(open, openPort, l.closing)
}

// try opens what is missing, port first, as soon as the lost device is closed. Nil: it is there.
func (l *Link) try(open func(context.Context) (Opened, error), openPort func() (OpenedPort, error),
	closing <-chan struct{}) {
	var a attempt
	if openPort != nil {
		if port, err := openPort(); err == nil {
			a.port = &port
		}
	}
	if open != nil {
		if closing != nil {
			<-closing
		}
		began := l.cfg.Clock.Now()
		device, err := open(l.ctx)
		a.took = l.cfg.Clock.Since(began)
		if a.err = err; err == nil {
			a.device = &device
		}
	}
	l.opened <- a
}

// take acts on an attempt's result.
func (l *Link) take(a attempt) {
	l.opening = false
	if a.port != nil {
		l.takePort(a.port)
	}
	if a.device != nil {
		a.err = l.takeDevice(a.device, a.took)
	}
	if l.device != nil {
		return
	}
	if a.err != nil {
		l.refused(a.err)
	}
	l.retry.Reset(l.nextPause())
	if l.again {
		l.soon()
	}
}

// nextPause returns how long after an attempt the device is looked for again.
func (l *Link) nextPause() time.Duration {
	away := l.cfg.Clock.Since(l.since)
	return max(l.pause, min(away/8, max(closePause, away/120), longestPause))
}

// refused notes why the device is not at work. A reason makes a line of log once.
func (l *Link) refused(reason error) {
	if l.status.Reason == nil || l.status.Reason.Error() != reason.Error() {
		l.log.Info("the device cannot be used yet", "error", reason)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Refused++
	l.status.State, l.status.Reason = Fallback, reason
}

// takePort takes a packet port into use if there is nothing better.
func (l *Link) takePort(port *OpenedPort) {
	l.mu.Lock()
	l.port = port
	l.mu.Unlock()
	if l.device == nil && l.status.Backend == rdma.BackendNone {
		l.limit.Stop()
		l.cause = PortReturned
		l.fallBack(l.status.Reason)
		l.regroup()
	}
}

// takeDevice has the endpoint work on a device, unless the endpoint cannot. took is how long it
// took to open the device.
func (l *Link) takeDevice(device *Opened, took time.Duration) error {
	if err := l.cfg.Endpoint.Switch(device.Backend); err != nil {
		return errors.Join(err, device.Close())
	}
	l.limit.Stop()
	if l.port != nil {
		if err := l.port.Mute(); err != nil {
			l.log.Warn("the packet port cannot be muted", "netdev", l.port.Name, "error", err)
		}
	}
	away := l.cfg.Clock.Since(l.since)
	l.cause = DeviceReturned
	l.mu.Lock()
	l.device = device
	l.status.Returns++
	l.status.OpenTook = took
	l.mu.Unlock()
	l.log.Warn("the device is back", "device", device.Name, "backend",
		device.Backend.Kind().String(), "away", away.Round(time.Millisecond), "opening",
		took.Round(time.Millisecond))
	l.set(Up, device.Backend.Kind(), nil)
	l.since = l.cfg.Clock.Now()
	l.regroup()
	return nil
}

// expire tells that there has been nothing for too long.
func (l *Link) expire() {
	l.mu.Lock()
	l.status.Expired = true
	l.status.Expirations++
	l.mu.Unlock()
	l.log.Error("there has been neither device nor packet port for too long", "limit",
		l.cfg.MaxOutage)
	l.cfg.Changed(Change{State: l.status.State, Backend: rdma.BackendNone, Expired: true,
		Cause: l.status.Reason, Away: l.cfg.Clock.Since(l.since)})
}

// set notes a change and tells it.
func (l *Link) set(state State, backend rdma.BackendKind, cause error) {
	l.mu.Lock()
	s := &l.status
	s.spend(l.cfg.Clock.Since(l.spent))
	l.spent = l.cfg.Clock.Now()
	if backend != s.Backend {
		s.Switches[Switch{s.Backend, backend, l.cause}]++
		s.Backend, s.Since = backend, l.cfg.Clock.Now()
	}
	s.State, s.Reason = state, cause
	s.Expired = s.Expired && backend == rdma.BackendNone
	expired := s.Expired
	l.mu.Unlock()
	l.cfg.Changed(Change{State: state, Backend: backend, Cause: cause, Expired: expired,
		LinkUp: l.LinkUp(), Away: l.cfg.Clock.Since(l.since)})
}

// end closes what there is.
func (l *Link) end() {
	l.retry.Stop()
	l.limit.Stop()
	l.reroute.Stop()
	l.cancel()
	var errs []error
	if l.opening {
		a := <-l.opened
		if a.device != nil {
			errs = append(errs, a.device.Close())
		}
		if a.port != nil {
			errs = append(errs, a.port.Close())
		}
	}
	if l.closing != nil {
		<-l.closing
	}
	if l.device != nil {
		errs = append(errs, l.device.Close())
	}
	if l.port != nil {
		errs = append(errs, l.port.Close())
	}
	l.err = errors.Join(errs...)
}
