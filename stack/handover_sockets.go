package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
)

// TakeSockets has the process that waits in [Stack.HandOver] on a unix socket hand its ports over
// to Linux, as [Stack.HandOverToKernel] does, and returns their sockets. That process then drains,
// and the caller, which needs no stack, serves all new clients. An error says why it does not, and
// nothing has changed.
func TakeSockets(ctx context.Context, path string) (sockets []KernelSocket, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("meet the process to take over from: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	p, err := newPeer(conn)
	if err == nil {
		err = p.send(msgKernel, handoverVersion)
	}
	var all inherited
	if err == nil {
		err = p.expectSockets(&all)
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		all.close()
		return nil, fmt.Errorf("take the sockets of a server's ports: %w", err)
	}
	return all.sockets(), nil
}

// expectSockets waits until the other process has handed over to the kernel.
func (p *peer) expectSockets(all *inherited) error {
	for {
		m, fds, err := p.receiveWith()
		if err != nil {
			return err
		}
		if m.kind == msgPorts {
			if err := all.add(m.body, fds); err != nil {
				return err
			}
			continue
		}
		closeFDs(fds)
		if err := m.refusal(); err != nil {
			return err
		}
		return m.decode(msgTaken, nil)
	}
}

// sockets are all of them, which are the caller's.
func (i *inherited) sockets() (all []KernelSocket) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for k, fd := range i.fds {
		all = append(all, handoverPort{k.protocol == backing.UDP, k.at}.socket(fd))
	}
	clear(i.fds)
	return all
}

// giveToKernel hands over to the kernel, and the sockets to another process.
func (s *Stack) giveToKernel(ctx context.Context, p *peer) error {
	p.conn.SetDeadline(s.clock.Now().Add(handoverTime))
	err := errNotHost
	if s.host != nil {
		err = s.host.sendPorts(p)
	}
	if err == nil {
		err = s.yieldToKernel(ctx)
	}
	if err != nil {
		return errors.Join(err, p.send(msgRefused, err.Error()))
	}
	if err := p.send(msgTaken, nil); err != nil {
		s.takeBack()
		return err
	}
	return nil
}
