package stack

import (
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// Capture writes the frames of the stack's link to w as a pcapng file, until ctx ends, limit frames
// are written (0: no limit), w fails or the stack is closed. Each Write is whole blocks of the
// file. Any number of captures run at a time; none slows the link by waiting for its writer, see
// [capture.Tap]. The error is that of the options or of w.
func (s *Stack) Capture(ctx context.Context, w io.Writer, opts capture.Options, limit int) error {
	if s.link == nil {
		return errors.New("this stack is on a link of its own making, which captures nothing; " +
			"open the stack on a device, or capture at the link")
	}
	opts.Clock = s.cfg.Clock
	tap, err := capture.New(opts)
	if err != nil {
		return err
	}
	s.link.AddTap(tap)
	defer s.link.RemoveTap(tap)
	stop := context.AfterFunc(s.ctx, tap.Close)
	defer stop()
	return tap.WriteTo(ctx, w, s.captured(), limit)
}

// captured describes the link in the file.
func (s *Stack) captured() capture.About {
	a := capture.About{Program: "rdma-netstack", Name: cmp.Or(s.Name(), "slice"),
		Description: "slice " + s.HardwareAddr().String()}
	switch dev, port := s.Device(), s.PacketPort(); {
	case dev != nil:
		a.Hardware = dev.Name() + " (mlx5)"
	case port != nil:
		a.Hardware = port.Name() + " (" + cmp.Or(port.Driver(), "netdev") + ")"
	}
	return a
}
