package stack

import (
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// SetNoDelay, if false, lets small writes wait for the acknowledgement of earlier ones (Nagle's
// algorithm, RFC 896). The default is true, as in package net.
func (c *TCPConn) SetNoDelay(noDelay bool) error {
	return c.set(func() { c.ep.SocketOptions().SetDelayOption(!noDelay) })
}

// SetLinger says what Close does with data not yet acknowledged: negative, the default, sends it in
// the background; 0 throws it away and resets the connection; more than 0 makes Close wait for the
// acknowledgement for that many seconds.
func (c *TCPConn) SetLinger(sec int) error {
	return c.set(func() {
		c.ep.SocketOptions().SetLinger(tcpip.LingerOption{
			Enabled: sec >= 0,
			Timeout: time.Duration(max(sec, 0)) * time.Second,
		})
	})
}

// SetKeepAlive turns keep-alive probes on or off.
func (c *TCPConn) SetKeepAlive(keepAlive bool) error {
	return c.set(func() { c.ep.SocketOptions().SetKeepAlive(keepAlive) })
}

// SetKeepAlivePeriod sets how long the connection is idle before the first probe; 0 means 15 s and
// a negative d changes nothing.
func (c *TCPConn) SetKeepAlivePeriod(d time.Duration) error {
	return c.set(func() { c.keepAliveIdle(d) })
}

// SetKeepAliveConfig sets all of keep-alive. Zero fields mean 15 s, 15 s and 9; negative fields
// change nothing.
func (c *TCPConn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	return c.set(func() { c.keepAlive(config) })
}

// keepAlive sets the times first, so that turning it on starts the timer with them.
func (c *TCPConn) keepAlive(config net.KeepAliveConfig) {
	c.keepAliveIdle(config.Idle)
	if d := orDefault(config.Interval, keepAliveInterval); d > 0 {
		interval := tcpip.KeepaliveIntervalOption(d)
		c.ep.SetSockOpt(&interval)
	}
	if n := orDefault(config.Count, keepAliveCount); n > 0 {
		c.ep.SetSockOptInt(tcpip.KeepaliveCountOption, n)
	}
	c.ep.SocketOptions().SetKeepAlive(config.Enable)
}

func (c *TCPConn) keepAliveIdle(d time.Duration) {
	if d = orDefault(d, keepAliveIdle); d > 0 {
		idle := tcpip.KeepaliveIdleOption(d)
		c.ep.SetSockOpt(&idle)
	}
}

// SetReadBuffer fixes the receive buffer at the given number of bytes, within the limits of
// [TCPOptions], and stops it from being tuned.
func (c *TCPConn) SetReadBuffer(bytes int) error {
	return c.setBuffer(bytes, setReadBuffer)
}

// SetWriteBuffer fixes the send buffer, see SetReadBuffer.
func (c *TCPConn) SetWriteBuffer(bytes int) error {
	return c.setBuffer(bytes, setWriteBuffer)
}

func (c *TCPConn) setBuffer(bytes int, set func(*tcpip.SocketOptions, int)) error {
	if err := c.done(); err != nil {
		return &net.OpError{Op: "set", Net: c.network, Addr: c.laddr, Err: err}
	}
	set(c.ep.SocketOptions(), bytes)
	return nil
}

// MultipathTCP is always false: netstack has no RFC 8684.
func (c *TCPConn) MultipathTCP() (bool, error) {
	if err := c.done(); err != nil {
		return false, err
	}
	return false, nil
}

// set runs change unless the conn is closed.
func (c *TCPConn) set(change func()) error {
	if err := c.done(); err != nil {
		return c.opError("set", err)
	}
	change()
	return nil
}

// setReadBuffer sets a socket's receive buffer.
func setReadBuffer(o *tcpip.SocketOptions, bytes int) {
	lo, hi := o.ReceiveBufferLimits()
	o.SetReceiveBufferSize(clamp(bytes, lo, hi), true)
}

// setWriteBuffer sets a socket's send buffer.
func setWriteBuffer(o *tcpip.SocketOptions, bytes int) {
	lo, hi := o.SendBufferLimits()
	o.SetSendBufferSize(clamp(bytes, lo, hi), true)
}

// clamp brings a buffer size into its limits as Linux does, to whom a negative one is very large.
func clamp(bytes int, lo, hi int64) int64 {
	if bytes < 0 {
		return hi
	}
	return min(max(int64(bytes), lo), hi)
}
