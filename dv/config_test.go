package dv

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// fill sets every field below v that can be set to something other than its zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("set")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(7)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Array:
		fill(v.Index(0))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Func:
		v.Set(reflect.MakeFunc(v.Type(), func([]reflect.Value) []reflect.Value { return nil }))
	case reflect.Interface:
		v.Set(reflect.ValueOf(strings.NewReader("set")))
	}
}

// TestConfigKeepsFields wants each field of a Config kept but for those that are given up by name:
// a field that is added later must not be lost when a device comes back.
func TestConfigKeepsFields(t *testing.T) {
	for name, tt := range map[string]struct {
		less  func(Config) Config
		reset []string
	}{
		"sizes": {Config.WithDefaultSizes, []string{"NIC.RxQueues", "NIC.TxQueues",
			"ActiveRxQueues", "NIC.Rings.RxQueueSize", "NIC.Rings.TxQueueSize",
			"Tuning.TxBufferSize", "Tuning.SpareFrames"}},
		"features": {Config.WithoutOptionalFeatures, []string{"NIC.Rings.Striding",
			"NIC.Rings.DelayDrop", "Tuning.StripVLAN", "Tuning.EventFrames",
			"Tuning.EventMicroseconds"}},
	} {
		var full Config
		fill(reflect.ValueOf(&full).Elem())
		full = full.WithSendMemory(func(int) ([]byte, error) { return nil, nil })
		before, after := leaves(full), leaves(tt.less(full))
		for field, was := range before {
			if field != "Clock" && was.IsZero() {
				t.Errorf("%s: the test does not set %s", name, field)
			}
			want := !slices.Contains(tt.reset, field)
			kept := !after[field].IsZero() || field == "Clock"
			if was.Kind() != reflect.Func {
				kept = reflect.DeepEqual(was.Interface(), after[field].Interface())
			}
			if kept != want {
				t.Errorf("%s: %s is kept: %v, want %v", name, field, kept, want)
			}
		}

	}
}

// leaves returns the fields of c and of its groups, by their names.
func leaves(c Config) map[string]reflect.Value {
	all := map[string]reflect.Value{}
	var add func(string, reflect.Value)
	add = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			name := path + v.Type().Field(i).Name
			if !v.Field(i).CanInterface() { // a function
				all[name] = v.Field(i)
				continue
			}
			switch v.Field(i).Interface().(type) {
			case NIC, Rings, Steering, Model, PortFacts, Tuning:
				add(name+".", v.Field(i))
			default:
				all[name] = v.Field(i)
			}
		}
	}
	add("", reflect.ValueOf(c))
	return all
}
