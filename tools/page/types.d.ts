// Types of the page's modules that are not written in them.

/** What may stand in a template. */
type Content = import("preact").ComponentChildren;
/** A job as one or in a list. */
type AnyJob = Api.JobView | Api.JobSummary;
/** What a view gets: the rest of the address's path, and its query. */
interface ViewProps {
  rest: string[];
  query: URLSearchParams;
}
/** What a tab of a job gets. */
interface JobProps {
  job: Api.JobView;
  events: Api.EventView[];
  query: URLSearchParams;
}
/** What failed: an error, or those parts of a problem document that a view shows. */
interface Refusal {
  message: string;
  type?: string;
  status?: number;
  errors?: Api.FieldError[];
  document?: Partial<Api.ProblemDocument>;
}
/** A request and its newest answer, as `useResource` returns it. */
interface Resource<T> {
  data: T | undefined;
  error: Refusal | undefined;
  reload: () => void;
}
/** An event of an element, as its handler gets it. */
type ChangeOf<Target extends EventTarget> = import("preact").JSX.TargetedEvent<Target>;
/** A part of a JSON Schema. */
type Schema = Record<string, any>;

/** JSX as Preact defines it; `tabindex="0"` is also a number. */
declare namespace JSX {
  type Preact = import("preact").JSX.IntrinsicElements;
  type Written<Value> = Value extends number ? Value | `${number}` : Value;
  type Tags = { [Tag in keyof Preact]: { [Name in keyof Preact[Tag]]: Written<Preact[Tag][Name]> } };
  type Element = import("preact").JSX.Element;
  type ElementType = import("preact").JSX.ElementType;
  interface ElementChildrenAttribute {
    children: unknown;
  }
  interface IntrinsicAttributes {
    key?: unknown;
  }
  interface IntrinsicElements extends Omit<Tags, "input" | "canvas"> {
    input: Tags["input"] & { webkitdirectory?: boolean };
    canvas: Tags["canvas"] & { onwebglcontextlost?: () => void };
  }
}

/** The API: its schemas and operations are in the generated `build/api.d.ts`. */
declare namespace Api {
  /** A path with `{}` in place of what varies: `/v1/jobs/{}/metrics`. */
  type Route<Path extends string> = Path extends `${infer First}/${infer Rest}`
    ? `${Part<First>}/${Route<Rest>}`
    : Part<Path>;
  type Part<Text extends string> = string extends Text ? "{}" : Text;
  type Operation<Method extends string, Path extends string> =
    `${Method} ${Route<Path>}` extends infer Key extends keyof Operations
      ? Operations[Key]
      : { query: Record<string, unknown>; body: unknown; answer: unknown };
  type Parameters<Method extends string, Path extends string> = {
    [Name in keyof Operation<Method, Path>["query"]]: Operation<Method, Path>["query"][Name] | null | "";
  };
  type Body<Method extends string, Path extends string> = Operation<Method, Path>["body"];
  type Answer<Method extends string, Path extends string> = Operation<Method, Path>["answer"];
  /** The items of a list. */
  type Items<Path extends string> = Answer<"GET", Path> extends { data: infer Data } ? Data : never;
}
