package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// up sends to the sink on every connection; the server reports how many bytes arrived and when.
func (r *runner) up() (metrics, error) {
	return r.bulk(portSink, func(c net.Conn, end time.Time) (uint64, error) {
		buf := make([]byte, bulkBuffer)
		for time.Now().Before(end) {
			if _, err := c.Write(buf); err != nil {
				return 0, err
			}
		}
		half, ok := c.(interface{ CloseWrite() error })
		if !ok {
			return 0, fmt.Errorf("%T cannot close one direction", c)
		}
		if err := half.CloseWrite(); err != nil {
			return 0, err
		}
		var total [8]byte
		_, err := io.ReadFull(c, total[:])
		return binary.BigEndian.Uint64(total[:]), err
	})
}

// down reads from the source on every connection.
func (r *runner) down() (metrics, error) {
	return r.bulk(portSource, readUntil)
}

func readUntil(c net.Conn, end time.Time) (total uint64, err error) {
	buf := make([]byte, bulkBuffer)
	for time.Now().Before(end) {
		n, err := c.Read(buf)
		total += uint64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// pieces does as down, of writes of Size bytes, or of a file if that is 0.
func (r *runner) pieces() (metrics, error) {
	return r.bulk(portPieces, func(c net.Conn, end time.Time) (total uint64, err error) {
		ask := binary.BigEndian.AppendUint64(nil, uint64(r.Size))
		if _, err := c.Write(ask); err != nil {
			return 0, err
		}
		return readUntil(c, end)
	})
}

// bulk runs one transfer per connection, all at once.
func (r *runner) bulk(port int, transfer func(net.Conn,
	time.Time) (uint64, error)) (metrics, error) {
	conns, err := r.dial(port)
	if err != nil {
		return nil, err
	}
	defer closeAll(conns)
	return r.transfers(len(conns), func(i int, end time.Time) (uint64, error) {
		return transfer(conns[i], end)
	})
}

// transfers runs n transfers at once and adds up their bytes.
func (r *runner) transfers(n int, transfer func(i int, end time.Time) (uint64, error)) (metrics,
	error) {
	var wg sync.WaitGroup
	totals, errs := make([]uint64, n), make([]error, n)
	start := time.Now()
	for i := range n {
		wg.Go(func() { totals[i], errs[i] = transfer(i, start.Add(r.time())) })
	}
	wg.Wait()
	sum := uint64(0)
	for i := range n {
		if errs[i] != nil {
			return nil, errs[i]
		}
		sum += totals[i]
	}
	return metrics{"bytes": float64(sum), "rate": float64(sum) / time.Since(start).Seconds() / 1e6},
		nil
}
