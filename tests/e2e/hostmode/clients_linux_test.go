package hostmode

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	bulkPort = 7000 // what connects there is sent bulkSize bytes
	bulkSize = 1 << 20
)

var pattern = payload(1, 4096)

// payload is n bytes that are different for each i.
func payload(i, n int) []byte {
	b := make([]byte, n)
	x := uint32(i)*2654435761 + 1
	for j := range b {
		x = x*1664525 + 1013904223
		b[j] = byte(x >> 24)
	}
	return b
}

// each calls do for 0 to n-1, so many at a time, and joins the first few errors.
func each(n, parallel int, do func(i int) error) error {
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
		next = make(chan int)
	)
	for range min(parallel, n) {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("%d: %w", i, err))
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if len(errs) > 3 {
		errs = append(errs[:3], fmt.Errorf("%d failed", len(errs)))
	}
	return errors.Join(errs...)
}

// echo sends b over c, and requires it back, and then the end. It closes c.
func echo(c net.Conn, b []byte) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(b)
		wrote <- errors.Join(err, c.(interface{ CloseWrite() error }).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-wrote); err != nil {
		return err
	}
	if !bytes.Equal(got, b) {
		return fmt.Errorf("%d bytes came back, not the %d sent", len(got), len(b))
	}
	return nil
}

// visit reads the server's greeting and then has n bytes echoed.
func visit(c net.Conn, want string, i, n int) error {
	met, err := meet(c, want)
	if err != nil {
		return err
	}
	return echo(met, payload(i, n))
}

// meet reads the server's greeting, which says whose c is there and who the client is. An error
// closes c.
func meet(c net.Conn, want string) (*buffered, error) {
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		c.Close()
		return nil, err
	}
	if greeting := fmt.Sprintf("%s %s\n", want, c.LocalAddr()); line != greeting {
		c.Close()
		return nil, fmt.Errorf("the server says %q, not %q", line, greeting)
	}
	return &buffered{c.(*net.TCPConn), r}, nil
}

// buffered is a connection of which something has been read.
type buffered struct {
	*net.TCPConn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error)         { return b.r.Read(p) }
func (b *buffered) WriteTo(w io.Writer) (int64, error) { return b.r.WriteTo(w) }
