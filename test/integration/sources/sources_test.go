package sources

import "testing"

func TestLook(t *testing.T) {
	if err := Look("fairlead.dev/fairlead/cmd/fairlead-controller"); err != nil {
		t.Error(err)
	}
	if err := Look("fairlead.dev/fairlead/cmd/no-such-program"); err == nil {
		t.Error("a program that does not exist has sources")
	}
}
