package answer

import (
	"errors"
	"fmt"
	"testing"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestErrorCodes(t *testing.T) {
	for _, tc := range codes {
		nodetest.WantCode(t, CNI(fmt.Errorf("doing it: %w", fault.Errorf(tc.err, "so"))), tc.code)
	}
	nodetest.WantCode(t, CNI(errors.New("x")), cniproto.CodeInternal)
	nodetest.WantCode(t, CNI(nil), 0)
	nodetest.WantCode(t, CNI(&cniproto.Error{Code: 6}), 6)
}
