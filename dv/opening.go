package dv

import (
	"fmt"
	"log/slog"
	"time"
)

// Opening says how long Open took.
type Opening struct {
	Took     time.Duration
	Commands uint64        // to the kernel's driver, one after the other
	InKernel time.Duration // inside them
	Stages   []OpeningStage
}

// OpeningStage is one part of Open. What it took besides InKernel is our own work, and system calls
// that are no command of the driver: mmap and madvise of the memory, sysfs and netlink.
type OpeningStage struct {
	Name     string
	Took     time.Duration
	Commands uint64
	InKernel time.Duration
}

// Opening says how long Open took for this device, and where.
func (d *Device) Opening() Opening {
	o := Opening{Stages: d.stages}
	for _, s := range d.stages {
		o.Took += s.Took
		o.Commands += s.Commands
		o.InKernel += s.InKernel
	}
	return o
}

// timed runs one stage of Open and notes how long it took.
func (d *Device) timed(name string, do func() error) error {
	var s OpeningStage
	if d.context != nil {
		c := d.context.Commands()
		s.Commands, s.InKernel = c.Count, c.Took
	}
	began := d.config.Clock.Now()
	if err := do(); err != nil {
		return err
	}
	s.Name, s.Took = name, d.config.Clock.Since(began)
	if d.context != nil {
		c := d.context.Commands()
		s.Commands, s.InKernel = c.Count-s.Commands, c.Took-s.InKernel
	}
	d.stages = append(d.stages, s)
	return nil
}

// LogValue implements slog.LogValuer: the stages, each with its time, its commands and their time.
func (o Opening) LogValue() slog.Value {
	const unit = 10 * time.Microsecond
	attrs := make([]slog.Attr, 0, len(o.Stages)+1)
	for _, s := range append([]OpeningStage{{"all", o.Took, o.Commands, o.InKernel}},
		o.Stages...) {
		attrs = append(attrs, slog.String(s.Name, fmt.Sprintf("%v, %d commands %v",
			s.Took.Round(unit), s.Commands, s.InKernel.Round(unit))))
	}
	return slog.GroupValue(attrs...)
}
