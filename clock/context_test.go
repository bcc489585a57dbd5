package clock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// TestWithTimeout: contexts of a virtual clock end as those of package context do.
func TestWithTimeout(t *testing.T) {
	late, gone := errors.New("too late"), errors.New("gone")
	for _, tt := range []struct {
		name       string
		parent     time.Duration // its timeout; 0: none
		end        func(virtual *clocktest.Clock, parent context.CancelCauseFunc, own func())
		err, cause error
	}{
		{"expired", 0, func(v *clocktest.Clock, _ context.CancelCauseFunc, _ func()) {
			v.Step()
		}, context.DeadlineExceeded, late},
		{"parent expired", time.Second, func(v *clocktest.Clock, _ context.CancelCauseFunc,
			_ func()) {
			v.Step()
		}, context.DeadlineExceeded, context.DeadlineExceeded},
		{"parent cancelled", 0, func(_ *clocktest.Clock, parent context.CancelCauseFunc, _ func()) {
			parent(gone)
		}, context.Canceled, gone},
		{"cancelled", 0, func(_ *clocktest.Clock, _ context.CancelCauseFunc, own func()) {
			own()
			own()
		}, context.Canceled, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual := clocktest.New()
			c := virtual.Clock()
			parent, cancelParent := context.WithCancelCause(
				context.WithValue(t.Context(), virtual, "value"))
			end := c.Now().Add(time.Minute)
			if tt.parent != 0 {
				var stop context.CancelFunc
				parent, stop = c.WithTimeout(parent, tt.parent)
				defer stop()
				end = c.Now().Add(tt.parent)
			}
			ctx, cancel := c.WithTimeoutCause(parent, time.Minute, late)
			child, cancelChild := context.WithCancel(ctx)
			defer cancelChild()
			if at, ok := child.Deadline(); !ok || !at.Equal(end) {
				t.Errorf("the deadline is %v, want %v", at, end)
			}
			if ctx.Err() != nil || child.Value(virtual) != "value" {
				t.Errorf("error %v, value %v", ctx.Err(), child.Value(virtual))
			}
			tt.end(virtual, cancelParent, cancel)
			for _, x := range []context.Context{ctx, child} {
				<-x.Done()
				if x.Err() != tt.err || context.Cause(x) != tt.cause {
					t.Errorf("error %v, cause %v", x.Err(), context.Cause(x))
				}
			}
			cancel()
		})
	}
}

// TestEndedBefore: a context that has ended when it is made says so at once.
func TestEndedBefore(t *testing.T) {
	c := clocktest.New().Clock()
	ctx, cancel := c.WithTimeout(t.Context(), 0)
	defer cancel()
	if ctx.Err() != context.DeadlineExceeded {
		t.Errorf("with no time: %v", ctx.Err())
	}
	parent, end := context.WithCancel(t.Context())
	end()
	ctx, cancel = c.WithDeadline(parent, c.Now().Add(time.Hour))
	defer cancel()
	if ctx.Err() != context.Canceled {
		t.Errorf("under one that has ended: %v", ctx.Err())
	}
}

// TestTimersLeft: a context that ends leaves no timer.
func TestTimersLeft(t *testing.T) {
	virtual := clocktest.New()
	_, cancel := virtual.Clock().WithTimeout(t.Context(), time.Hour)
	if virtual.Timers() != 1 {
		t.Errorf("%d timers", virtual.Timers())
	}
	cancel()
	if virtual.Timers() != 0 {
		t.Errorf("%d timers left", virtual.Timers())
	}
}
