package moving

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestStopped: a stalled connection is detected in either direction, with the error.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		c := Conn(a, new(Meter), 10*time.Millisecond)
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, ErrStopped) {
			t.Errorf("read %d, %v", n, err)
		}
		if n, err := c.Write([]byte("x")); n != 0 || !errors.Is(err, ErrStopped) {
			t.Errorf("wrote %d, %v", n, err)
		}
	})
}

// TestMoves: a slow transfer is not stopped, and arrives complete.
func TestMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		const limit = time.Second
		want := bytes.Repeat([]byte("0123456789"), 5*piece/10)
		go func() {
			defer a.Close()
			if n, err := Conn(a, new(Meter), limit).Write(want); n != len(want) || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
		}()
		begin := time.Now()
		slow := readerFunc(func(p []byte) (int, error) {
			time.Sleep(limit / 20)
			return Conn(b, new(Meter), limit).Read(p[:min(len(p), 3*piece/4)])
		})
		got := make([]byte, len(want))
		if n, err := io.ReadFull(slow, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d, %v", n, len(want), err)
		}
		if took := time.Since(begin); took <= limit/4 {
			t.Errorf("took %v: too fast to show anything", took)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestOthersMove: a connection may wait as long as another one makes progress, and no longer.
func TestOthersMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		const limit = 20 * time.Millisecond
		meter, begin := new(Meter), time.Now()
		for _, moves := range []int{3, 0} {
			go func() {
				for range moves {
					time.Sleep(limit / 2)
					meter.Move()
				}
			}()
			if n, err := Conn(a, meter, limit).Read(make([]byte, 1)); !errors.Is(err, ErrStopped) {
				t.Errorf("read %d, %v", n, err)
			}
		}
		if took := time.Since(begin); took < 3*limit {
			t.Errorf("given up after %v although others moved", took)
		}
	})
}
