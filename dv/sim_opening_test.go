package dv_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// slowKernel takes a millisecond for each command, and counts them.
type slowKernel struct {
	uverbs.Kernel
	commands *uint64
}

func (k slowKernel) Ioctl(buf []byte) error {
	*k.commands++
	time.Sleep(time.Millisecond)
	return k.Kernel.Ioctl(buf)
}

// TestOpening: each command of Open counts in one stage, with the time that the kernel took, and
// what is told at level debug has every stage.
func TestOpening(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	var commands uint64
	var log strings.Builder
	d := s.open(t, dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2},
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Interpose: func(k uverbs.Kernel) uverbs.Kernel {
			return slowKernel{k, &commands}
		}})
	o := d.Opening()
	if o.Commands != commands || o.InKernel < time.Duration(commands)*time.Millisecond ||
		o.Took < o.InKernel || len(o.Stages) < 8 {
		t.Errorf("%d commands, %+v", commands, o)
	}
	for _, stage := range o.Stages {
		if stage.Took < stage.InKernel || stage.Commands > 0 && stage.InKernel == 0 {
			t.Errorf("%+v", stage)
		}
		if !strings.Contains(log.String(), `took.`+stage.Name) &&
			!strings.Contains(log.String(), `"took.`+stage.Name+`"`) {
			t.Errorf("the log does not have %q: %s", stage.Name, log.String())
		}
	}
	t.Log(o.LogValue())
}
