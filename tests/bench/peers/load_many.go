package main

import (
	"bufio"
	"errors"
)

// many sends requests over all connections that idle has opened, in turn, webConns in flight, and
// closes them.
func (r *runner) many() (metrics, error) {
	if len(idlers) < webConns {
		return nil, errors.New("no idle connections")
	}
	defer func() {
		closeAll(idlers)
		idlers = nil
	}()
	deadline, _ := r.ctx.Deadline()
	web := make([]*webConn, len(idlers))
	for i, c := range idlers {
		_ = c.SetDeadline(deadline)
		web[i] = &webConn{c, bufio.NewReaderSize(c, 2048)}
	}
	next := make([]int, webConns)
	return r.repeat(webConns, func(i int) error {
		mine := len(web) / webConns // connections of each
		w := web[i*mine+next[i]%mine]
		next[i]++
		return w.get()
	})
}
