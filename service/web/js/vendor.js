// The libraries of the page, under one name each. See vendor/README.md.
export {
  html,
  render,
  useState,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useCallback,
} from "../vendor/htm-preact.js";
