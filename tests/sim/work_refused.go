package sim

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// refused makes a client dial a port that nobody has: the kernel of the host refuses it, at once
// where nothing gets lost.
func (j *job) refused() {
	j.w.spawn(j.name+", client", func(t *task) error {
		t.sleep(j.plan.Start)
		for range j.plan.Count {
			t.calls("dial a port that nobody has")
			began := j.w.clock.now()
			c, err := j.w.hosts[j.plan.Client].dial(context.Background(), j.at(j.plan.Server))
			switch {
			case err == nil:
				c.Close()
				return errors.New("nobody listens, and there is a connection")
			case !errors.Is(err, syscall.ECONNREFUSED) && (!j.w.plan.harmful() ||
				began > j.w.calm):
				return fmt.Errorf("nobody listens: %w", err)
			}
			t.sleep(j.plan.Pause)
		}
		return nil
	})
}
