package uverbs

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// asyncRecord is one ib_uverbs_async_event_desc.
func asyncRecord(kind uint32, element uint64) []byte {
	b := binary.NativeEndian.AppendUint64(nil, element)
	b = binary.NativeEndian.AppendUint32(b, kind)
	return append(b, 0, 0, 0, 0)
}

// compRecord is one ib_uverbs_comp_event_desc.
func compRecord(handle uint64) []byte { return binary.NativeEndian.AppendUint64(nil, handle) }

// channelFixture is a completion channel and the kernel's end of it.
func channelFixture(t testing.TB) (*CompChannel, int) {
	t.Helper()
	k, c := openFake(t, Options{})
	ch := must[*CompChannel](t)(c.CreateCompChannel())
	return ch, k.peers[len(k.peers)-1]
}

func send(t testing.TB, fd int, record []byte) {
	t.Helper()
	if n, err := unix.Write(fd, record); n != len(record) || err != nil {
		t.Fatalf("write event: %d, %v", n, err)
	}
}

func TestChannelWait(t *testing.T) {
	ch, peer := channelFixture(t)
	for range 3 {
		send(t, peer, compRecord(7))
	}
	if n, err := ch.Wait(); n != 3 || err != nil {
		t.Errorf("wait: %d, %v", n, err)
	}
	if n, err := ch.Drain(); n != 0 || err != nil {
		t.Errorf("drain of an empty channel: %d, %v", n, err)
	}
	send(t, peer, compRecord(7))
	if n, err := ch.Drain(); n != 1 || err != nil {
		t.Errorf("drain: %d, %v", n, err)
	}
}

func TestChannelNext(t *testing.T) {
	ch, peer := channelFixture(t)
	send(t, peer, compRecord(0x1111222233334444))
	send(t, peer, compRecord(5))
	for _, want := range []uint64{0x1111222233334444, 5} {
		if h, ok, err := ch.Next(); h != want || !ok || err != nil {
			t.Errorf("%#x, %v, %v, want %#x", h, ok, err, want)
		}
	}
	ch.Wake()
	if _, ok, err := ch.Next(); ok || err != nil {
		t.Errorf("next after wake: %v, %v", ok, err)
	}
}

// TestChannelParks: a waiter that has nothing to read is released by an event, by Wake and by
// Close.
func TestChannelParks(t *testing.T) {
	for _, tc := range []struct {
		name    string
		release func(ch *CompChannel, peer int)
		n       int
		want    error
	}{
		{"event", func(_ *CompChannel, peer int) { send(t, peer, compRecord(1)) }, 1, nil},
		{"wake", func(ch *CompChannel, _ int) { ch.Wake() }, 0, nil},
		{"close", func(ch *CompChannel, _ int) { ch.Close() }, 0, ErrClosed},
		{"close context", func(ch *CompChannel, _ int) { ch.c.Close() }, 0, ErrClosed},
		{"device gone", func(_ *CompChannel, peer int) { unix.Shutdown(peer, unix.SHUT_WR) }, 0,
			unix.EIO},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ch, peer := channelFixture(t)
			if tc.name == "device gone" {
				ch, peer = socketChannel(t)
			}
			started := make(chan struct{})
			type result struct {
				n   int
				err error
			}
			done := make(chan result)
			go func() {
				close(started)
				n, err := ch.Wait()
				done <- result{n, err}
			}()
			<-started
			tc.release(ch, peer)
			if r := <-done; r.n != tc.n || !errors.Is(r.err, tc.want) {
				t.Errorf("%d, %v, want %d, %v", r.n, r.err, tc.n, tc.want)
			}
			if tc.want == nil {
				send(t, peer, compRecord(1))
				if n, err := ch.Wait(); n != 1 || err != nil {
					t.Errorf("afterwards: %d, %v", n, err)
				}
			}
		})
	}
}

// socketChannel is a channel over a socket pair, whose end can be shut down.
func socketChannel(t testing.TB) (*CompChannel, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	k := newFake(t)
	k.patch = func(c *call) {
		if c.name == "CREATE_COMP_CHANNEL" {
			unix.Close(int(u32(c.out[1])))
			p32(c.out[1], uint32(fds[0]))
		}
	}
	c, err := Open(k, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return must[*CompChannel](t)(c.CreateCompChannel()), fds[1]
}

// TestChannelWakeIsNotLost: a Wake before the Wait ends it, once.
func TestChannelWakeIsNotLost(t *testing.T) {
	ch, peer := channelFixture(t)
	ch.Wake()
	ch.Wake()
	if n, err := ch.Wait(); n != 0 || err != nil {
		t.Errorf("woken wait: %d, %v", n, err)
	}
	send(t, peer, compRecord(1))
	if n, err := ch.Wait(); n != 1 || err != nil {
		t.Errorf("next wait: %d, %v", n, err)
	}
}

func TestChannelClosed(t *testing.T) {
	ch, _ := channelFixture(t)
	ch.Close()
	ch.Wake()
	if _, err := ch.Wait(); !errors.Is(err, ErrClosed) {
		t.Errorf("wait: %v", err)
	}
	if _, _, err := ch.Next(); !errors.Is(err, ErrClosed) {
		t.Errorf("next: %v", err)
	}
	if _, err := ch.Drain(); !errors.Is(err, ErrClosed) {
		t.Errorf("drain: %v", err)
	}
	if _, err := ch.c.CreateCQ(CQAttr{Entries: 64, Buf: region(t, 4096), DBR: region(t, 8),
		Channel: ch}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("queue on a closed channel: %v", err)
	}
}

// TestChannelConcurrent: one waiter, many wakers and events, then close; the race detector looks
// on.
func TestChannelConcurrent(t *testing.T) {
	ch, peer := channelFixture(t)
	const events = 200
	var got int
	waiter := make(chan struct{})
	go func() {
		defer close(waiter)
		for {
			n, err := ch.Wait()
			got += n
			if err != nil {
				if !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
				return
			}
			if got == events {
				ch.Close()
			}
		}
	}()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range events / 4 {
				send(t, peer, compRecord(1))
				ch.Wake()
			}
		})
	}
	wg.Wait()
	<-waiter
	if got != events {
		t.Errorf("%d events of %d", got, events)
	}
}

func TestChannelShortRecord(t *testing.T) {
	ch, peer := channelFixture(t)
	send(t, peer, []byte{1, 2, 3})
	if _, err := ch.Wait(); !errors.Is(err, unix.EIO) {
		t.Errorf("%v", err)
	}
}

// TestChannelAllocations: waiting, waking and draining cost no garbage.
func TestChannelAllocations(t *testing.T) {
	ch, peer := channelFixture(t)
	record := compRecord(1)
	for name, f := range map[string]func(){
		"wait":  func() { unix.Write(peer, record); ch.Wait() },
		"next":  func() { unix.Write(peer, record); ch.Next() },
		"drain": func() { unix.Write(peer, record); ch.Drain() },
		"wake":  func() { ch.Wake(); ch.Wait() },
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestAsyncEvents(t *testing.T) {
	k, c := openFake(t, Options{})
	send(t, k.peers[0], asyncRecord(8, 0))
	send(t, k.peers[0], asyncRecord(19, 0xb1))
	send(t, k.peers[0], asyncRecord(99, 1))
	for _, want := range []AsyncEvent{{EventDeviceFatal, 0}, {EventWQFatal, 0xb1}, {99, 1}} {
		if e, err := c.AsyncEvents().ReadEvent(); e != want || err != nil {
			t.Errorf("%v, %v, want %v", e, err, want)
		}
	}
	done := make(chan error)
	go func() {
		_, err := c.AsyncEvents().ReadEvent()
		done <- err
	}()
	c.Close()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	if s := (AsyncEvent{EventPortError, 1}).String(); s != "PORT_ERR of 0x1" {
		t.Errorf("prints %q", s)
	}
}

func BenchmarkChannelWait(b *testing.B) {
	ch, peer := channelFixture(b)
	record := compRecord(1)
	b.ReportAllocs()
	for b.Loop() {
		unix.Write(peer, record)
		ch.Wait()
	}
}
