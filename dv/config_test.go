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
		"sizes": {Config.WithDefaultSizes, []string{"RxQueues", "TxQueues", "ActiveRxQueues",
			"RxQueueSize", "TxQueueSize", "TxBufferSize", "SpareFrames"}},
		"features": {Config.WithoutOptionalFeatures, []string{"Striding", "StripVLAN", "DelayDrop",
			"EventFrames", "EventMicroseconds"}},
	} {
		var full Config
		fill(reflect.ValueOf(&full).Elem())
		before, after := reflect.ValueOf(full), reflect.ValueOf(tt.less(full))
		for i := range before.NumField() {
			field := before.Type().Field(i)
			if field.Name != "Clock" && before.Field(i).IsZero() {
				t.Errorf("%s: the test does not set %s", name, field.Name)
			}
			want := !slices.Contains(tt.reset, field.Name)
			kept := !after.Field(i).IsZero() || field.Name == "Clock"
			if field.Type.Kind() != reflect.Func {
				kept = reflect.DeepEqual(before.Field(i).Interface(), after.Field(i).Interface())
			}
			if kept != want {
				t.Errorf("%s: %s is kept: %v, want %v", name, field.Name, kept, want)
			}
		}
	}
}
